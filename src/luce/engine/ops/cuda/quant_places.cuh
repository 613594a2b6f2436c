// Where each thread works, and what it has of a unit.

typedef float Totals[ROW_TILES][TOKEN_TILES][4];

// One thread's place: its rows are row + 16 tile and 8 more, its tokens token + 8 tile.
struct Place {
    int quad, t, row, token;
    int x[KEYS];       // where it reads pieces of a token that is `quad` among eight
    int codes[GROUPS]; // and its words of a row that is

    __device__ __forceinline__ Place() {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        quad = lane / 4;
        t = lane % 4;
        row = warp % ROW_WARPS * ROW_TILES * 16 + quad;
        token = warp / ROW_WARPS * TOKEN_TILES * 8;
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            x[i] = X_AT + quad * X_LINE + swizzled(quad, i * PIECE) + t * (PIECE / 4);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
            codes[group] = CODES_AT + row * CODE_BYTES + swizzled_code(quad, group * 16) +
                           (HAS_TWO_SCALES ? t / 2 : t) * 4;
    }

    // x of a group that meets `Codes`, in their order, for eight tokens from `token` on.
    __device__ __forceinline__ uint4 vector(const char *stage, int token, int group) const {
        const char *line = stage + token * X_LINE + group * 64 / 128 * 128;
        if (!HAS_TWO_SCALES)
            return *(const uint4 *)(line + (group % 2 ? x[1] : x[0]));
        uint2 first = *(const uint2 *)(line + (group % 2 ? x[2 % KEYS] : x[0]));
        uint2 second = *(const uint2 *)(line + (group % 2 ? x[3 % KEYS] : x[1]));
        return make_uint4(first.x, first.y, second.x, second.y);
    }
};

// A group's codes as they are stored, of the row so many after a thread's first.
__device__ __forceinline__ RawCodes raw_codes(const char *stage, const Place &at, int group,
                                              int row) {
    RawCodes raw;
    raw.load(stage + at.codes[group] + row * CODE_BYTES,
             stage + HIGH_AT + (at.row + row) * HIGH_BYTES + group * 4);
    return raw;
}
