// Matrix of quantised rows times up to TOKENS vectors: weights stream through shared memory.
//
// y[t, n] = sum_k x[t, k] W[n, k] (+ bias[n]) (+ residual[t, n]); W in the planes of
// luce.loaders.quant_formats, x and y bfloat16, sums in float32.
//
// A unit is ROWS rows by a span of 128 columns. All units, row block by row block, are one line
// that the blocks of threads share out evenly; each takes its part in order and copies a ring of
// STAGES units ahead of itself. Where a row block is shared by several blocks of threads, each
// leaves its sums in memory and the last one to come adds all of them, in the line's order. So
// a sum's order is fixed by the matrix's size and the grid alone, not by rows of x or by timing.
//
// TOGETHER, four warps multiply together, in half the tensor cores' time (quant_together.cuh);
// otherwise each by itself (quant_alone.cuh).
//
// EARLY kernels are launched while the one before is at work: they ask for their first weights,
// then wait for it.
//
// Columns may be summed in any order, so a thread takes those that its words hold, and no code
// ever moves between threads. Codes become bfloat16 exactly; scales come in
// float32, once a group. Offsets meet the sums of x in one more product for each four groups, both
// as two bfloat16 each:  sum_g B_g X_g  with  B = high + low, X = high + low.

// A float as two bfloat16 that add up to it, but for 2^-17 of it.
__device__ __forceinline__ u32 split(float value) {
    float high = bfloat16_to_float((u16)pack_bfloat16(value, value));
    return pack_bfloat16(high, value - high);
}

__device__ __forceinline__ void add_products(const Problem &p, const char *stage,
                                             const char *arranged, const Constants &one,
                                             const Place &at, int first_row, int span,
                                             Totals &total) {
    Scales stored[ROW_TILES][2];
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int row = at.row + tile * 16 + half * 8;
            bool is_odd = false;
            if (BLOCK_BYTES == 2) {
                int num_blocks = p.num_spans / SPANS_OF_BLOCK;
                int last = min(first_row + row, p.num_rows - 1);
                is_odd = (last & num_blocks & 1) ^ (span / SPANS_OF_BLOCK & 1);
            }
            stored[tile][half].load(stage, row, is_odd);
        }
    add_groups(stage, arranged, one, at, stored, total);
}

// The sums of x over each group of a stage, for all tokens, by all warps: a matrix that is one in
// the row of a group's number puts the sums of several groups in one place.
__device__ __forceinline__ void add_up(const char *stage, const Place &at, u32 *sums) {
    const int tiles = TOKENS / 8;
    const int width = WARPS >= 4 * tiles ? 1 : WARPS >= 2 * tiles ? 2 : 4;
    const int tasks = tiles * (GROUPS / width);
#pragma unroll
    for (int turn = 0; turn < tasks; turn += WARPS) {
        const int task = turn + threadIdx.x / 32;
        if (tasks % WARPS && task >= tasks)
            break;
        const int tile = task % tiles, first = task / tiles * width;
        float c[4] = {};
#pragma unroll
        for (int i = 0; i < width; ++i) {
            uint4 v = at.vector(stage, tile * 8, first + i);
            u32 ones = at.quad == first + i ? 0x3f803f80u : 0;
            multiply(c, ones, 0, ones, 0, v.x, v.y);
            multiply(c, ones, 0, ones, 0, v.z, v.w);
        }
        if (at.quad / width == first / width) {
            sums[(tile * 8 + at.t * 2) * GROUPS + at.quad] = split(c[0]);
            sums[(tile * 8 + at.t * 2 + 1) * GROUPS + at.quad] = split(c[1]);
        }
    }
}

__device__ __forceinline__ u32 *sums_of(char *ring, int turn) {
    return (u32 *)(ring + SUMS_AT + turn % 2 * SUM_BYTES);
}

__device__ __forceinline__ char *arranged_of(char *ring, int turn) {
    return ring + ARRANGED_AT + turn % 2 * ARRANGED_BYTES;
}

// What is made of a stage's x a unit ahead, so that no barrier stands between it and its use.
__device__ __forceinline__ void prepare(const char *stage, const Place &at, char *ring, int turn) {
    if (HAS_OFFSET)
        add_up(stage, at, sums_of(ring, turn));
    arrange(stage, at, arranged_of(ring, turn));
}

__device__ __forceinline__ void add_offsets(const char *stage, const u32 *sums,
                                            const Constants &one, const Place &at, Totals &total) {
    u32 high[ROW_TILES][2], low[ROW_TILES][2];
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float offset = offset_of(one, stage, at.row + tile * 16 + half * 8, at.t);
            high[tile][half] = pack_bfloat16(offset, offset);
            float rest = offset - bfloat16_to_float((u16)high[tile][half]);
            low[tile][half] = pack_bfloat16(rest, rest);
        }
#pragma unroll
    for (int token = 0; token < TOKEN_TILES; ++token) {
        u32 sum = sums[(at.token + token * 8 + at.quad) * GROUPS + at.t];
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
            multiply(total[tile][token], high[tile][0], high[tile][1], low[tile][0], low[tile][1],
                     sum, sum);
    }
}

__device__ __forceinline__ void work(const Problem &p) {
    char *ring = shared_memory();
    int *flag = (int *)(ring + FLAG_AT);
    const Place at;
    const Constants one(p);
    const int row_blocks = (p.num_rows + ROWS - 1) / ROWS;
    const Shares shares = {(u32)row_blocks * p.num_spans, (u32)gridDim.x};
    const int begin = shares.begin(blockIdx.x), end = shares.begin(blockIdx.x + 1);
    MatrixFeed matrix(p, begin);
    int row_block = matrix.row_block, span = matrix.span;
    VectorFeed vectors(p, span);
    // The kernel before may still be making x; weights are there.
    const int early = EARLY ? min(2, STAGES - 1) : 0;
#pragma unroll
    for (int stage = 0; stage < early; ++stage)
        if (begin + stage < end)
            matrix.copy(p, ring + stage * STAGE_BYTES);
    if (EARLY) {
        let_next_kernel_begin();
        wait_for_kernels_before();
    }
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (begin + stage < end) {
            vectors.copy(p, ring + stage * STAGE_BYTES);
            if (stage >= early)
                matrix.copy(p, ring + stage * STAGE_BYTES);
        }
        commit_copies();
    }
    if (LOOKS_AHEAD) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        prepare(ring, at, ring, 0);
    }
    Totals total;
    clear(total);
    char *stage = ring, *last_stage = ring + (STAGES - 1) * STAGE_BYTES, *free_stage = last_stage;
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
        wait_for_copies<STAGES - 2 - LOOKS_AHEAD>();
        __syncthreads();
        if (unit + STAGES - 1 < end) {
            vectors.copy(p, free_stage);
            matrix.copy(p, free_stage);
        }
        commit_copies();
        free_stage = stage;
        char *next = stage == last_stage ? ring : stage + STAGE_BYTES;
        const int turn = unit - begin;
        add_products(p, stage, arranged_of(ring, turn), one, at, row_block * ROWS, span, total);
        if (HAS_OFFSET)
            add_offsets(stage, sums_of(ring, turn), one, at, total);
        // After the last unit, of what lies there.
        if (LOOKS_AHEAD)
            prepare(next, at, ring, turn + 1);
        stage = next;
        if (++span < p.num_spans && unit + 1 < end)
            continue;
        if (gather(p, shares, row_block, flag, total))
            store(p, at, row_block * ROWS, total);
        span = 0;
        ++row_block;
        clear(total);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    quant_stream(const u16 *x, u16 *y, const u16 *residual, const u16 *bias, const char *codes,
                 const char *high, const char *scales, const char *blocks, float4 *partials,
                 int *arrived, int num_tokens, int num_rows, int num_spans, int x_stride,
                 int y_stride, int has_bias, int has_residual) {
    work({x, y, residual, bias, codes, high, scales, blocks, partials, arrived, num_tokens,
          num_rows, num_spans, x_stride, y_stride, has_bias, has_residual});
}
