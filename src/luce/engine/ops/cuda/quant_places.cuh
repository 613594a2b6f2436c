// Where each thread works, and what it has of a unit.

typedef float Totals[ROW_TILES][TOKEN_TILES][4];

// One thread's place: its rows are row + 16 tile and 8 more.
struct Place {
    int quad, t, row;
    int codes[GROUPS]; // where it reads words of a row that is `quad` among eight

    __device__ __forceinline__ Place() {
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        quad = lane / 4;
        t = lane % 4;
        row = warp * ROW_TILES * 16 + quad;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
            codes[group] = CODES_AT + row * CODE_BYTES + swizzled_code(quad, group * 16) +
                           (HAS_TWO_SCALES ? t / 2 : t) * 4;
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
