// A thread's part of a unit, 32 rows by 256 columns of a matrix: in each half of the columns, a
// group of 32 of each of four rows, eight apart. Its registers are filled again as soon as they
// are used, so that as much as a unit of every warp is on its way at all times.

#define THREADS (WARPS * 32)
#define HAS_MINIMA (SCALE == SCALE_BYTE_OFFSET)
#define PAIR_ROWS 32
#define ROWS 4
#define UNIT_CODE_BYTES 128
#define UNIT_HIGH_BYTES 32

struct Problem {
    const char *x;
    u16 *y;
    const u16 *residual, *bias;
    const char *codes, *high, *scales, *blocks;
    int num_tokens, num_rows, num_units, y_stride, has_bias, has_residual;
};

struct Unit {
    uint4 codes[SPANS][ROWS][CODE_PARTS];
    u32 high[SPANS][ROWS][HIGH_PARTS + 1];
    u32 scales[SPANS][ROWS];
    u32 blocks[ROWS];
    // Where the next comes from: units before each row, and before it in its row.
    u32 row[ROWS], unit;

    __device__ __forceinline__ void aim(const Problem &p, int first_row, int of_row) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            row[r] = (u32)min(first_row + r * 8, p.num_rows - 1) * p.num_units;
        unit = of_row;
    }

    // Begin to load the codes of half of the columns, and what belongs to them.
    __device__ __forceinline__ void load(const Problem &p, int span, int t) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
            for (int part = 0; part < CODE_PARTS; ++part) {
                const u32 at = CODE_PARTS * row[r] + part * p.num_units + unit;
                codes[span][r][part] =
                    load_vector(p.codes + (i64)at * UNIT_CODE_BYTES + span * 64 + t * 16);
            }
#pragma unroll
            for (int part = 0; part < HIGH_PARTS; ++part) {
                const u32 at = HIGH_PARTS * row[r] + part * p.num_units + unit;
                high[span][r][part] =
                    load_word<4>(p.high + (i64)at * UNIT_HIGH_BYTES + span * 16 + t * 4);
            }
            scales[span][r] = load_word<GROUP_SCALE_BYTES>(
                p.scales + (i64)(row[r] + unit) * (GROUPS * GROUP_SCALE_BYTES) +
                (span * 4 + t) * GROUP_SCALE_BYTES);
        }
    }

    __device__ __forceinline__ void load_blocks(const Problem &p) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (BLOCK_BYTES)
                blocks[r] = load_word<BLOCK_BYTES>(p.blocks + (i64)(row[r] + unit) * BLOCK_BYTES);
    }

    // Eight columns' weights of a row.
    __device__ __forceinline__ void weights(const Constants &one, const GroupScale &scale,
                                            int span, int r, int eight, u32 (&pairs)[4]) const {
        const u32 word = word_of(codes[span][r][0], eight);
        if (CODES == 8)
            from_bytes(one, scale, word ^ 0x80808080u,
                       word_of(codes[span][r][CODE_PARTS - 1], eight) ^ 0x80808080u, eight, pairs);
        else if (TABLE)
            from_table(one, scale, word, eight, pairs);
        else
            from_nibbles(one, scale, word, high[span][r], eight, pairs);
    }
};
