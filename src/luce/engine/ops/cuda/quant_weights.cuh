// Codes of a group as whole weights: bfloat16 with scale and offset, rounded once from float32.

#define SIGNED_BYTES (CODES == 8 || TABLE)

// What makes weights of codes, for a group of a row or half of one.
struct Affine {
    float scale, low, high; // offsets of the codes in the low and in the high half of a pair

    __device__ __forceinline__ Affine(const Constants &one, const Scales &stored, int group,
                                      int half) {
        scale = stored.scale(one, group, half);
        // Of 128 + q.
        low = HAS_OFFSET ? stored.offset(one, group, scale) : scale * -(128.0f + ZERO);
        if (SIGNED_BYTES) {
            low = fmaf(scale, -32768.0f, low);
            return;
        }
        // A pair as a float is its high half and 0x43xx / 2^16, of which xx is left.
        high = fmaf(scale, -0.26171875f, low);
    }

    // Of two codes as 128 + q.
    __device__ __forceinline__ u32 operator()(u32 pair) const {
        float first = __int_as_float(pair << 16), second = __int_as_float(pair);
        return pack_bfloat16(fmaf(first, scale, low), fmaf(second, scale, high));
    }

    // Of bytes `index` and `index` + 2, which are 128 + q, as 2^15 + byte.
    __device__ __forceinline__ u32 of_bytes(const Constants &one, u32 word, int index) const {
        float first = __int_as_float(__byte_perm(word, one.half, 0x7404 | index << 4));
        float second = __int_as_float(__byte_perm(word, one.half, 0x7424 | index << 4));
        return pack_bfloat16(fmaf(first, scale, low), fmaf(second, scale, low));
    }
};

// Eight weights of a row, in the order of `Codes`.
struct Weights {
    u32 pairs[4];

    __device__ __forceinline__ void make(const Constants &one, const RawCodes &raw,
                                         const Scales &stored, int group, int t) {
        Codes codes;
        codes.make(one, raw, t);
        const Affine first(one, stored, group, 0);
        const Affine second = HAS_TWO_SCALES ? Affine(one, stored, group, 1) : first;
        if (SIGNED_BYTES) {
            pairs[0] = first.of_bytes(one, codes.pairs[0], 0);
            pairs[1] = first.of_bytes(one, codes.pairs[1], 0);
            pairs[2] = second.of_bytes(one, codes.pairs[0], 1);
            pairs[3] = second.of_bytes(one, codes.pairs[1], 1);
            return;
        }
        pairs[0] = first(codes.pairs[0]);
        pairs[1] = first(codes.pairs[1]);
        pairs[2] = second(codes.pairs[2]);
        pairs[3] = second(codes.pairs[3]);
    }
};

// Of all rows of a thread.
typedef Scales RowScales[ROW_TILES][2];
typedef RawCodes GroupCodes[ROW_TILES][2];
typedef Weights GroupWeights[ROW_TILES][2];

__device__ __forceinline__ void load_group(const char *stage, const Place &at, int group,
                                           GroupCodes &codes) {
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            codes[tile][half] = raw_codes(stage, at, group, tile * 16 + half * 8);
}

__device__ __forceinline__ void make_group(const Constants &one, const Place &at,
                                           const GroupCodes &codes, const RowScales &stored,
                                           int group, GroupWeights &weights) {
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            weights[tile][half].make(one, codes[tile][half], stored[tile][half], group, at.t);
}

// Begin the products of a group with x, `arranged`.
__device__ __forceinline__ void begin_group(u64 arranged, int group, const GroupWeights &weights,
                                            Totals &total) {
    const u64 first = shared_matrix_after(arranged, group * 2 * TOKENS * 32);
    const u64 second = shared_matrix_after(arranged, (group * 2 + 1) * TOKENS * 32);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) {
        const u32(&up)[4] = weights[tile][0].pairs;
        const u32(&down)[4] = weights[tile][1].pairs;
        multiply_together(total[tile], up[0], down[0], up[1], down[1], first, 1);
        multiply_together(total[tile], up[2], down[2], up[3], down[3], second, 1);
    }
}
