// Products of a stage, each warp by itself: x comes to registers for each of them.

__device__ __forceinline__ void add_groups(const char *stage, const char *, const Constants &one,
                                           const Place &at, const Scales (&stored)[ROW_TILES][2],
                                           Totals &total) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        Codes codes[ROW_TILES][2];
        load_codes(one, stage, at, group, codes);
#pragma unroll
        for (int token = 0; token < TOKEN_TILES; ++token) {
            uint4 v = at.vector(stage, at.token + token * 8, group);
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
                const u32(&up)[4] = codes[tile][0].pairs, (&down)[4] = codes[tile][1].pairs;
                const Scales &above = stored[tile][0], &below = stored[tile][1];
                float(&into)[4] = total[tile][token], c[4] = {};
                multiply(c, up[0], down[0], up[1], down[1], v.x, v.y);
                if (HAS_TWO_SCALES) {
                    add_scaled(into, c, above.scale(one, group, 0), below.scale(one, group, 0));
                    c[0] = c[1] = c[2] = c[3] = 0.0f;
                }
                multiply(c, up[2], down[2], up[3], down[3], v.z, v.w);
                add_scaled(into, c, above.scale(one, group, 1), below.scale(one, group, 1));
            }
        }
    }
}

// Nothing: `add_groups` reads x as it was copied.
__device__ __forceinline__ void arrange(const char *, const Place &, char *) {}
