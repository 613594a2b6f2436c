// Weights of quant_split.cu as half-precision numbers, made by a thread from a group of 32 codes.
//
// A code is put into the fraction of 1024, or of 16 times 64 where it lies four bits higher; what
// is more than the code goes with the zero, exactly. What is scaled here is exact for scales of
// few bits (those of blocks of 256 columns, whose own scale comes later), else right to 2^-12.

#define HALF_1024 0x64006400u
#define MINUS_1024 0xe400e400u
#define SIXTEENTH 0x2c002c00u
#define MINUS_64 0xd400d400u

// Scales are few bits and codes unsigned: they need no zero, and one instruction.
#define IS_INTEGER (SCALE == SCALE_BYTE_OFFSET)
#define HAS_TWO_SCALES (SCALE == SCALE_SIXTEEN)

// What the compiler must not take for a constant, or it would not leave it in a register: an
// instruction has room for one constant.
struct Constants {
    u32 thousand;
    __device__ __forceinline__ explicit Constants(int num_tokens)
        : thousand(HALF_1024 + (u32)(num_tokens >> 31)) {}
    // A byte of a word, unsigned, twice.
    __device__ __forceinline__ u32 twice(u32 word, int byte) const {
        return subtract_half(__byte_perm(word, thousand, 0x5050 | byte * 0x0101), thousand);
    }
    // One that had 128 added.
    __device__ __forceinline__ u32 signed_twice(u32 word, int byte) const {
        return subtract_half(__byte_perm(word, thousand, 0x5050 | byte * 0x0101), 0x64806480u);
    }
};

// Scales of a group, each twice in a word.
struct GroupScale {
    u32 scale[1 + HAS_TWO_SCALES];
    u32 base;               // B, or -1024 S
    u32 upper, upper_base;  // S / 16, -64 S
    u32 minimum;

    __device__ __forceinline__ GroupScale(const Constants &one, u32 word) {
#if SCALE == SCALE_HALF
        scale[0] = __byte_perm(word, 0, 0x1010);
#elif SCALE == SCALE_HALF_OFFSET
        scale[0] = __byte_perm(word, 0, 0x1010);
        base = __byte_perm(word, 0, 0x3232);
#elif SCALE == SCALE_BYTE_OFFSET
        scale[0] = one.twice(word, 0);
        minimum = one.twice(word, 1);
        base = multiply_half(scale[0], MINUS_1024);
        upper = multiply_half(scale[0], SIXTEENTH);
        upper_base = multiply_half(scale[0], MINUS_64);
#else
        scale[0] = one.signed_twice(word ^ 0x8080u, 0);
        if (HAS_TWO_SCALES)
            scale[HAS_TWO_SCALES] = one.signed_twice(word ^ 0x8080u, 1);
#endif
    }

    // A pair of codes less their zero times S, and B. They are in the words' eights 0..3 in order.
    __device__ __forceinline__ u32 scaled(u32 codes, int eight) const {
        if (SCALE == SCALE_HALF_OFFSET)
            return multiply_add_half(codes, scale[0], base);
        return multiply_half(codes, scale[HAS_TWO_SCALES * (eight / 2)]);
    }
    // 1024 + code.
    __device__ __forceinline__ u32 lower_pair(u32 raised, int eight) const {
        if (IS_INTEGER)
            return multiply_add_half(raised, scale[0], base);
        return scaled(subtract_half(raised, HALF_1024 + ZERO * 0x00010001u), eight);
    }
    // 1024 + 16 code; 16 times what it stands for if x has a sixteenth there.
    __device__ __forceinline__ u32 upper_pair(u32 raised, int eight) const {
        if (X_HAS_SIXTEENTHS)
            return multiply_add_half(raised, scale[0], base);
        if (IS_INTEGER)
            return multiply_add_half(raised, upper, upper_base);
        const u32 minus_zero = MINUS_64 + ZERO * 0x00100010u;
        return scaled(multiply_add_half(raised, SIXTEENTH, minus_zero), eight);
    }
    // 1024 + 128 + a signed code.
    __device__ __forceinline__ u32 byte_pair(u32 raised, int eight) const {
        return scaled(subtract_half(raised, 0x64806480u), eight);
    }
};

__device__ __forceinline__ u32 shifted_left(u32 word, int bits) {
    return bits < 0 ? word >> -bits : word << bits;
}

// Signed bytes of columns 0, 4, 1, 5 and 2, 6, 3, 7, to which 128 was added.
__device__ __forceinline__ void from_bytes(const Constants &one, const GroupScale &scale,
                                           u32 first, u32 second, int eight, u32 (&pairs)[4]) {
    const u32 words[4] = {first, second, first, second};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        pairs[i] = scale.byte_pair(
            __byte_perm(words[i], one.thousand, i < 2 ? 0x5250 : 0x5351), eight);
}

// Which of the table's halves: the selectors' upper bits, a nibble each.
__device__ __forceinline__ u32 picked(u32 index, u32 upper) {
    return __byte_perm(__byte_perm(TABLE_0 ^ 0x80808080u, TABLE_1 ^ 0x80808080u, index),
                       __byte_perm(TABLE_2 ^ 0x80808080u, TABLE_3 ^ 0x80808080u, index), upper);
}

// Four-bit codes of columns 0, 2, 4, 6, 1, 3, 5, 7 through a table of signed bytes.
__device__ __forceinline__ void from_table(const Constants &one, const GroupScale &scale, u32 word,
                                           int eight, u32 (&pairs)[4]) {
    const u32 index = word & 0x77777777u, upper = ((word >> 1) & 0x44444444u) | 0x32103210u;
    const u32 even = picked(index, upper), odd = picked(index >> 16, upper >> 16);
    from_bytes(one, scale, __byte_perm(even, odd, 0x6420), __byte_perm(even, odd, 0x7531), eight,
               pairs);
}

// Eight columns' weights as four pairs, from a word of low bits and the group's high bits.
__device__ __forceinline__ void from_nibbles(const Constants &one, const GroupScale &scale,
                                             u32 word, const u32 (&high)[HIGH_PARTS + 1],
                                             int eight, u32 (&pairs)[4]) {
    const u32 next = word >> 8;
    u32 raised[4] = {(word & 0x000f000fu) | one.thousand, (word & 0x00f000f0u) | one.thousand,
                     (next & 0x000f000fu) | one.thousand, (next & 0x00f000f0u) | one.thousand};
    if (HIGH == 1) {
        const u32 first = shifted_left(high[0], 4 - eight), second = high[0] >> (4 + eight);
        raised[0] |= first & 0x00100010u;
        raised[1] |= first & 0x01000100u;
        raised[2] |= second & 0x00100010u;
        raised[3] |= second & 0x01000100u;
    } else if (HIGH == 2) {
        const u32 even = high[0], odd = high[HIGH_PARTS - 1];
        raised[0] |= shifted_left(even, 4 - 2 * eight) & 0x00300030u;
        raised[1] |= shifted_left(odd, 8 - 2 * eight) & 0x03000300u;
        raised[2] |= (even >> (4 + 2 * eight)) & 0x00300030u;
        raised[3] |= (odd >> 2 * eight) & 0x03000300u;
    }
    pairs[0] = scale.lower_pair(raised[0], eight);
    pairs[1] = scale.upper_pair(raised[1], eight);
    pairs[2] = scale.lower_pair(raised[2], eight);
    pairs[3] = scale.upper_pair(raised[3], eight);
}
