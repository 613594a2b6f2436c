// A piece of experts' weights, 16 rows by 256 columns, multiplied by some tokens' x.
//
// Codes stay bytes and meet x of 16 bits, as two bytes, in tensor cores. A thread loads 16 bytes of
// codes, a group of 32 columns of one row in each half of a piece, and knows their scale alone.
// So its sums must be of its own group: of the eight columns of a product's right side two are for
// each of the four groups that a row's threads hold, one for the upper and one for the lower bytes
// of x, and are zero where other groups' codes meet them. A thread then gets its own two sums,
// exactly, and no code or sum moves between threads until a row's end.

#define SPANS 2
#define PIECE_ROWS 16
#define MOST_SLOTS 4
#define LONG 8388608.0f

struct RoutedFormat {
    static const int codes = R_CODES, parts = R_CODE_PARTS, high = R_HIGH, tops = R_HIGH_PARTS,
                     table = R_TABLE, zero = R_ZERO, scale = R_SCALE, block_bytes = R_BLOCK_BYTES,
                     scale_bytes = R_GROUP_SCALE_BYTES;
    static const u32 table_0 = R_TABLE_0, table_1 = R_TABLE_1, table_2 = R_TABLE_2,
                     table_3 = R_TABLE_3;
};
#if IS_ONE_FORMAT
typedef RoutedFormat SharedFormat;
#else
struct SharedFormat {
    static const int codes = S_CODES, parts = S_CODE_PARTS, high = S_HIGH, tops = S_HIGH_PARTS,
                     table = S_TABLE, zero = S_ZERO, scale = S_SCALE, block_bytes = S_BLOCK_BYTES,
                     scale_bytes = S_GROUP_SCALE_BYTES;
    static const u32 table_0 = S_TABLE_0, table_1 = S_TABLE_1, table_2 = S_TABLE_2,
                     table_3 = S_TABLE_3;
};
#endif

struct Planes {
    const char *codes, *high, *scales, *blocks;

    // From where thread t of a row reads.
    __device__ __forceinline__ Planes of_thread(int t) const {
        return {codes + t * 16, high, scales, blocks};
    }
};

// A byte of a word.
__device__ __forceinline__ float float_of_byte(u32 word, int index) {
    return __int_as_float(__byte_perm(word, 0x4b000000u, 0x7550 | index)) - LONG;
}

// One that is signed.
__device__ __forceinline__ float float_of_signed(u32 word, int index) {
    return __int_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7550 | index)) -
           (LONG + 128.0f);
}

// A group's S, or that of each half of it, and what x's sum is multiplied by.
template <class F> struct GroupScale {
    static const bool has_two = F::scale == SCALE_SIXTEEN;
    static const bool has_offset =
        F::zero != 0 || F::scale == SCALE_BYTE_OFFSET || F::scale == SCALE_HALF_OFFSET;
    float scale[1 + has_two], offset[1 + has_two];

    __device__ __forceinline__ GroupScale(u32 word, u32 block) {
        const float factor = F::block_bytes ? half_to_float(block & 0xffff) : 1.0f;
        float base = 0.0f;
        if (F::scale == SCALE_HALF || F::scale == SCALE_HALF_OFFSET)
            scale[0] = half_to_float(word & 0xffff);
        else if (F::scale == SCALE_POWER)
            // 2^(e - 128): the two least of them are denormal.
            scale[0] = __int_as_float(word < 2 ? 0x00200000u << word : (word - 1) << 23);
        else if (F::scale == SCALE_BYTE_OFFSET)
            scale[0] = factor * float_of_byte(word, 0);
        else
            scale[0] = factor * float_of_signed(word, 0);
        if (has_two)
            scale[has_two] = factor * float_of_signed(word, 1);
        if (F::scale == SCALE_HALF_OFFSET)
            base = half_to_float(word >> 16);
        if (F::scale == SCALE_BYTE_OFFSET)
            base = -half_to_float(block >> 16) * float_of_byte(word, 1);
#pragma unroll
        for (int half = 0; half <= has_two; ++half)
            offset[half] = fmaf(scale[half], -(float)F::zero, base);
    }
};

// Where a thread copies a piece's parts from, and its own rows: units before them.
struct Lines {
    u32 row[2]; // its own
    u32 line;   // of row lane % 16, whose scales or blocks it copies
    u32 half;   // of row lane / 2, of which it copies half of what is 32 bytes

    // Of eight rows after so many units, and eight others.
    __device__ __forceinline__ void aim(u32 first, u32 second, int units) {
        const int lane = threadIdx.x % 32;
        row[0] = first + lane / 4 * units;
        row[1] = second + lane / 4 * units;
        line = (lane % 16 < 8 ? first : second) + lane % 8 * units;
        half = (lane < 16 ? first : second) + lane / 2 % 8 * units;
    }
};

// A thread's part of a piece. It comes by way of shared memory, where its warp has RING pieces on
// their way at a time: of loads into registers the compiler would wait for the last.
template <class F> struct Piece {
    static const int high_at = F::parts * 2048, scales_at = high_at + F::tops * 512,
                     blocks_at = scales_at + F::scale_bytes * 128,
                     size = blocks_at + (F::block_bytes ? 64 : 0);
    static_assert(size <= SLOT_BYTES, "a piece has no room");
    uint4 codes[SPANS][2][F::parts];
    u32 high[SPANS][2][F::tops + 1];
    u32 scales[SPANS][2], blocks[2];

    // Begin to copy one; planes `of_thread`.
    __device__ __forceinline__ static void copy(char *slot, const Planes &p, const Lines &lines,
                                                int units, int unit) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < F::parts * 4; ++i) {
            const int part = i / 4, span = i / 2 % 2, r = i % 2;
            const u32 at = F::parts * lines.row[r] + part * units + unit;
            copy_ahead<16>(slot + i * 512 + lane * 16, p.codes + (i64)at * 128 + span * 64);
        }
#pragma unroll
        for (int part = 0; part < F::tops; ++part) {
            const u32 at = F::tops * lines.half + part * units + unit;
            copy_ahead<16>(slot + high_at + part * 512 + lane * 16,
                           p.high + (i64)at * 32 + lane % 2 * 16);
        }
        if (F::scale_bytes == 4)
            copy_ahead<16>(slot + scales_at + lane * 16,
                           p.scales + (i64)(lines.half + unit) * 32 + lane % 2 * 16);
        else if (lane < 16)
            copy_ahead<F::scale_bytes == 1 ? 8 : 16>(
                slot + scales_at + lane * 8 * F::scale_bytes,
                p.scales + (i64)(lines.line + unit) * (8 * F::scale_bytes));
        if (F::block_bytes && lane >= 16) {
            const u32 at = lines.line + unit;
            // Those of two bytes come with a neighbour.
            copy_ahead<4>(slot + blocks_at + lane % 16 * 4,
                          p.blocks + (F::block_bytes == 4 ? (i64)at * 4 : (i64)(at / 2) * 4));
        }
    }

    __device__ __forceinline__ void read(const char *slot, const Lines &lines, int unit) {
        const int lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
        for (int i = 0; i < SPANS * 2; ++i) {
            const int span = i / 2, r = i % 2, row = r * 8 + lane / 4;
#pragma unroll
            for (int part = 0; part < F::parts; ++part)
                codes[span][r][part] = *(const uint4 *)(slot + (part * 4 + i) * 512 + lane * 16);
#pragma unroll
            for (int part = 0; part < F::tops; ++part)
                high[span][r][part] =
                    *(const u32 *)(slot + high_at + part * 512 + row * 32 + span * 16 + t * 4);
            const char *scale = slot + scales_at + (row * 8 + span * 4 + t) * F::scale_bytes;
            scales[span][r] = F::scale_bytes == 4   ? *(const u32 *)scale
                              : F::scale_bytes == 2 ? *(const u16 *)scale
                                                    : *(const unsigned char *)scale;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            blocks[r] = 0;
            if (F::block_bytes)
                blocks[r] = *(const u32 *)(slot + blocks_at + (r * 8 + lane / 4) * 4);
            if (F::block_bytes == 2 && (lines.row[r] + unit) % 2)
                blocks[r] >>= 16;
        }
    }

    // Which of the table's halves: the selectors' upper bits, a nibble each.
    __device__ __forceinline__ static u32 picked(u32 index, u32 upper) {
        return __byte_perm(__byte_perm(F::table_0, F::table_1, index),
                           __byte_perm(F::table_2, F::table_3, index), upper);
    }

    // Eight columns' codes of a row as bytes: columns 0, 4, 1, 5, and 2, 6, 3, 7.
    __device__ __forceinline__ void bytes(int span, int r, int eight, u32 &first,
                                          u32 &second) const {
        const u32 word = word_of(codes[span][r][0], eight);
        if (F::codes == 8) {
            first = word;
            second = word_of(codes[span][r][F::parts - 1], eight);
            return;
        }
        if (F::table) {
            const u32 index = word & 0x77777777u;
            const u32 upper = ((word >> 1) & 0x44444444u) | 0x32103210u;
            const u32 even = picked(index, upper), odd = picked(index >> 16, upper >> 16);
            first = __byte_perm(even, odd, 0x6420);
            second = __byte_perm(even, odd, 0x7531);
            return;
        }
        first = word & 0x0f0f0f0fu;
        second = (word >> 4) & 0x0f0f0f0fu;
        if (F::high == 1) {
            const u32 bits = high[span][r][0];
            first |= (bits << (4 - eight)) & 0x10101010u;
            second |= (bits >> eight) & 0x10101010u;
        } else if (F::high == 2) {
            const u32 even = high[span][r][0], odd = high[span][r][F::tops ? F::tops - 1 : 0];
            const int up = 4 - 2 * eight;
            first |= (up < 0 ? even >> -up : even << up) & 0x30303030u;
            second |= (up < 0 ? odd >> -up : odd << up) & 0x30303030u;
        }
    }
};

// A token's x of half of a piece: what a thread gives of the right side of its products, for two
// eights of its columns each, and of its own group what multiplies sums and sums of x by halves.
// EACH says whether an eight has a scale of its own.
template <bool EACH> struct SpanOfX {
    uint4 right[2];
    float scale[EACH ? 4 : 1], sum[2];
};

// A thread's sums of its two rows.
typedef float Totals[MOST_SLOTS][2];

__device__ __forceinline__ float of_slot(const Totals &total, int slot, int r) {
    const float low = slot == 0 ? total[0][r] : total[1][r];
    return slot < 2 ? low : slot == 2 ? total[2][r] : total[3][r];
}

// total += products of half of a piece with x of N tokens, from slot FIRST on.
template <class F, bool EACH, int FIRST, int N>
__device__ __forceinline__ void add_span(const Piece<F> &piece, int span,
                                         const SpanOfX<EACH> (&x)[N], Totals &total) {
    typedef GroupScale<F> Scale;
    const Scale scales[2] = {{piece.scales[span][0], piece.blocks[0]},
                             {piece.scales[span][1], piece.blocks[1]}};
    const bool is_signed = F::codes == 8 || F::table;
    int products[N][4];
    float sums[N][2];
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
        const int half = Scale::has_two ? eight / 2 : 0, run = Scale::has_two ? 2 : 4;
        u32 first[2], second[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            piece.bytes(span, r, eight, first[r], second[r]);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            int(&c)[4] = products[k];
            if (EACH || eight % run == 0)
                c[0] = c[1] = c[2] = c[3] = 0;
            const uint4 &right = x[k].right[eight / 2];
            multiply_bytes<is_signed>(c, first[0], first[1], second[0], second[1],
                                      eight % 2 ? right.z : right.x,
                                      eight % 2 ? right.w : right.y);
            const bool ends = eight % run == run - 1;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                if (EACH || ends) {
                    const float value = (float)(c[r * 2] * 256 + c[r * 2 + 1]);
                    const float by = x[k].scale[EACH ? eight : 0];
                    sums[k][r] = EACH && eight % run ? fmaf(value, by, sums[k][r]) : value * by;
                }
                if (ends) {
                    total[FIRST + k][r] = fmaf(scales[r].scale[half], sums[k][r], total[FIRST + k][r]);
                    if (Scale::has_offset)
                        total[FIRST + k][r] = fmaf(scales[r].offset[half],
                                           Scale::has_two ? x[k].sum[half]
                                                          : x[k].sum[0] + x[k].sum[1],
                                           total[FIRST + k][r]);
                }
            }
        }
    }
}

// A warp's pieces, one after another: WAY says where each lies.
template <class F, class WAY> struct Ring {
    const Planes planes; // of this thread
    char *slots;
    int slot;
    WAY ahead;

    __device__ __forceinline__ Ring(const Planes &all, char *memory, const WAY &first)
        : planes(all.of_thread(threadIdx.x % 4)),
          slots(memory + threadIdx.x / 32 * (RING * SLOT_BYTES)), slot(0), ahead(first) {
#pragma unroll
        for (int i = 0; i < RING; ++i)
            copy(slots + i * SLOT_BYTES);
    }
    __device__ __forceinline__ void copy(char *to) {
        if (!ahead.is_done()) {
            Piece<F>::copy(to, planes, ahead.lines, WAY::units, ahead.unit);
            ahead.step();
        }
        end_batch();
    }
    // The next; then its place is filled again.
    __device__ __forceinline__ void take(Piece<F> &piece, const Lines &lines, int unit) {
        wait_for_copies<RING - 1>();
        meet_warp();
        char *at = slots + slot * SLOT_BYTES;
        piece.read(at, lines, unit);
        meet_warp();
        copy(at);
        slot = slot + 1 == RING ? 0 : slot + 1;
    }
};
