// Codes of a stage as 128 + q, and their scales and offsets.

__device__ __forceinline__ u32 word_at(const char *at) { return *(const u32 *)at; }

// Constants in registers: an instruction has room for one of its own only. They are made from
// what the compiler cannot know, or it would not leave them there.
struct Constants {
    u32 code, byte, half;
    __device__ __forceinline__ explicit Constants(const Problem &p) {
        u32 nothing = (u32)(p.num_tokens >> 31);
        code = 0x43004300u + nothing;
        byte = 0x4b000000u + nothing;
        half = 0x47000000u + nothing;
    }
    // 2^23 + a byte of a word.
    __device__ __forceinline__ float long_byte(u32 word, int index) const {
        return __int_as_float(__byte_perm(word, byte, 0x7550 | index));
    }
};
#define LONG 8388608.0f

// What is stored of the scales of one row of a unit.
struct Scales {
    u32 words[SCALE_BYTES / 4];
    float block, minus, minimum; // d of blocks that have one, -2^23 d, dmin

    __device__ __forceinline__ void load(const char *stage, int row, bool is_odd) {
        const char *at = stage + SCALES_AT + row * SCALE_BYTES;
#pragma unroll
        for (int i = 0; i < SCALE_BYTES / 4; ++i)
            words[i] = word_at(at + i * 4);
        if (BLOCK_BYTES) {
            u32 word = word_at(stage + BLOCKS_AT + row * 4);
            block = half_to_float(is_odd ? word >> 16 : word & 0xffff);
            minus = -LONG * block;
            if (SCALE == SCALE_BYTE_OFFSET)
                minimum = half_to_float(word >> 16);
        }
    }

    // S of a group, or of half of one.
    __device__ __forceinline__ float scale(const Constants &one, int group, int half) const {
        const int bytes = SCALE_BYTES / GROUPS;
        u32 word = words[group * bytes / 4];
        int byte = group * bytes % 4;
        if (SCALE == SCALE_HALF || SCALE == SCALE_HALF_OFFSET)
            return half_to_float(byte ? word >> 16 : word & 0xffff);
        if (SCALE == SCALE_POWER) {
            // 2^(e - 128): the two least of them are denormal.
            u32 e = word >> (8 * byte) & 0xff;
            return __int_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        }
        if (SCALE == SCALE_BYTE_OFFSET)
            return fmaf(block, one.long_byte(word, byte), minus); // exact
        float above = one.long_byte(word ^ 0x80808080u, byte + HAS_TWO_SCALES * half);
        return block * (above - (LONG + 128.0f));
    }

    // Of a group, codes being 128 + q: B - 128 S.
    __device__ __forceinline__ float offset(const Constants &one, int group, float scale) const {
        const int bytes = SCALE_BYTES / GROUPS;
        u32 word = words[group * bytes / 4];
        if (SCALE == SCALE_HALF_OFFSET)
            return fmaf(scale, -128.0f, half_to_float(word >> 16));
        float least = one.long_byte(word, group * bytes % 4 + 1) - LONG;
        return fmaf(scale, -128.0f, -minimum * least);
    }
};

// What is stored of eight codes.
struct RawCodes {
    u32 words[4];

    // `at` is this thread's first word of the group, `high_at` the group's word of high bits.
    __device__ __forceinline__ void load(const char *at, const char *high_at) {
        words[0] = word_at(at);
#if CODES == 8
        words[1] = word_at(at + ROWS * CODE_BYTES);
#elif HAS_TWO_SCALES
        words[1] = word_at(at + 8);
        words[2] = word_at(high_at);
        words[3] = word_at(high_at + ROWS * HIGH_BYTES);
#elif HIGH == 1
        words[1] = word_at(high_at);
#endif
    }
};

// Eight codes of a row as four pairs: the first two go with the first product of sixteen columns,
// the others with the second. Thread t of four has columns 8t.. of the group, or where each half
// of it has a scale, columns 4t.. of each half.
struct Codes {
    u32 pairs[4];

    __device__ __forceinline__ void make(const Constants &one, const RawCodes &raw, int t) {
#if CODES == 8
        bytes(raw.words[0], raw.words[1]);
#elif TABLE
        looked_up(raw.words[0]);
#elif HAS_TWO_SCALES
        halves(one, raw.words[0], raw.words[1], raw.words[2], raw.words[3], t);
#else
        u32 word = raw.words[0];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            pairs[i] = ((word >> (4 * i)) & 0x000f000fu) | one.code;
#if HIGH == 1
        u32 top = raw.words[1] >> t;
        pairs[0] |= (top << 4) & 0x00100010u;
#pragma unroll
        for (int i = 1; i < 4; ++i)
            pairs[i] |= (top >> (4 * i - 4)) & 0x00100010u;
#endif
#endif
    }

    // Signed bytes of columns 0, 4, 1, 5 and 2, 6, 3, 7 stay words.
    __device__ __forceinline__ void bytes(u32 low, u32 high) {
        pairs[0] = low ^ 0x80808080u;
        pairs[1] = high ^ 0x80808080u;
    }

    // Four-bit codes of columns 0, 2, 4, 6, 1, 3, 5, 7 through a table of signed bytes.
    __device__ __forceinline__ void looked_up(u32 word) {
        u32 index = word & 0x77777777u, upper = ((word >> 1) & 0x44444444u) | 0x32103210u;
        u32 even = picked(index, upper), odd = picked(index >> 16, upper >> 16);
        bytes(__byte_perm(even, odd, 0x6420), __byte_perm(even, odd, 0x7531));
    }

    // Which of the table's halves: the selectors' upper bits, a nibble each.
    __device__ __forceinline__ static u32 picked(u32 index, u32 upper) {
        return __byte_perm(__byte_perm(TABLE_0, TABLE_1, index),
                           __byte_perm(TABLE_2, TABLE_3, index), upper);
    }

    // Six-bit codes from words of low nibbles and two words of high bits.
    __device__ __forceinline__ void halves(const Constants &one, u32 first, u32 second, u32 even,
                                           u32 odd, int t) {
        const int side = t % 2 * 8, top = side + t / 2 * 2;
        first >>= side;
        second >>= side;
        even >>= top;
        odd >>= top;
        pairs[0] = (first & 0x000f000fu) | one.code | ((even << 4) & 0x00300030u);
        pairs[1] = ((first >> 4) & 0x000f000fu) | one.code | ((odd << 4) & 0x00300030u);
        pairs[2] = (second & 0x000f000fu) | one.code | (even & 0x00300030u);
        pairs[3] = ((second >> 4) & 0x000f000fu) | one.code | (odd & 0x00300030u);
    }
};
