// Products of a stage, four warps together: the tensor cores read x from shared memory, where it
// was arranged as the codes lie.

__device__ __forceinline__ void add_groups(const char *stage, const char *arranged,
                                           const Constants &one, const Place &at,
                                           const Scales (&stored)[ROW_TILES][2], Totals &total) {
    // One group's codes are made while another's products are.
    Codes codes[2][ROW_TILES][2];
    load_codes(one, stage, at, 0, codes[0]);
    float c[ROW_TILES][TOKEN_TILES][4];
#pragma unroll
    for (int step = 0; step < GROUPS * (1 + HAS_TWO_SCALES); ++step) {
        const int group = step / (1 + HAS_TWO_SCALES), half = step % (1 + HAS_TWO_SCALES);
        const char *x = arranged + (group * 2 + half) * TOKENS * 32;
        begin_products();
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
            const u32(&up)[4] = codes[group % 2][tile][0].pairs;
            const u32(&down)[4] = codes[group % 2][tile][1].pairs;
            multiply_together(c[tile], up[half * 2], down[half * 2], up[half * 2 + 1],
                              down[half * 2 + 1], shared_matrix(x), 0);
            if (!HAS_TWO_SCALES)
                multiply_together(c[tile], up[2], down[2], up[3], down[3],
                                  shared_matrix(x + TOKENS * 32), 1);
        }
        if (group + 1 < GROUPS && half == HAS_TWO_SCALES)
            load_codes(one, stage, at, group + 1, codes[(group + 1) % 2]);
        wait_for_products();
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
            const float above = stored[tile][0].scale(one, group, half);
            const float below = stored[tile][1].scale(one, group, half);
#pragma unroll
            for (int token = 0; token < TOKEN_TILES; ++token) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    settle(c[tile][token][i]);
                add_scaled(total[tile][token], c[tile][token], above, below);
            }
        }
    }
}
