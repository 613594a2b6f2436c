// Matrix of quantised rows times dozens of vectors. All units, of some rows by a span of columns,
// are one line that blocks of threads share out (quant_shares.cuh). Codes become whole weights in
// registers (quant_weights.cuh), four warps multiply them together, and tensor cores sum over all
// columns: nothing is left to do once products are begun.
//
// Codes are read two groups, weights made one group ahead of their products; x is arranged a unit
// ahead.

__device__ __forceinline__ void load_scales(const Problem &p, const char *stage, const Place &at,
                                            int first_row, int span, RowScales &stored) {
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
}

__device__ __forceinline__ char *arranged_of(char *ring, int turn) {
    return ring + ARRANGED_AT + turn % 2 * ARRANGED_BYTES;
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
#pragma unroll 1
    for (int stage = 0; stage < early; ++stage)
        if (begin + stage < end)
            matrix.copy(p, ring + stage * STAGE_BYTES);
    if (EARLY) {
        let_next_kernel_begin();
        wait_for_kernels_before();
    }
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (begin + stage < end) {
            vectors.copy(p, ring + stage * STAGE_BYTES);
            if (stage >= early)
                matrix.copy(p, ring + stage * STAGE_BYTES);
        }
        commit_copies();
    }
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    const Arranger arranger(at);
    arrange(ring, at, arranged_of(ring, 0));
    RowScales stored;
    load_scales(p, ring, at, row_block * ROWS, span, stored);
    GroupWeights weights[2];
    GroupCodes codes[2];
    load_group(ring, at, 0, codes[0]);
    load_group(ring, at, 1, codes[1]);
    make_group(one, at, codes[0], stored, 0, weights[0]);
    Totals total;
    clear(total);
    char *stage = ring, *last_stage = ring + (STAGES - 1) * STAGE_BYTES, *free_stage = last_stage;
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
        wait_for_copies<STAGES - 3>();
        __syncthreads();
        if (unit + STAGES - 1 < end) {
            vectors.copy(p, free_stage);
            matrix.copy(p, free_stage);
        }
        commit_copies();
        free_stage = stage;
        char *next = stage == last_stage ? ring : stage + STAGE_BYTES;
        const int turn = unit - begin;
        const bool is_last = ++span == p.num_spans;
        const int next_row_block = row_block + is_last;
        span = is_last ? 0 : span;
        const u64 arranged = shared_matrix(arranged_of(ring, turn));
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            // After the last unit, of what lies there.
            if (group + 1 == GROUPS)
                load_scales(p, next, at, next_row_block * ROWS, span, stored);
            begin_group(arranged, group, weights[group % 2], total);
            if (group + 2 < GROUPS)
                load_group(stage, at, group + 2, codes[group % 2]);
            else
                load_group(next, at, group + 2 - GROUPS, codes[group % 2]);
            uint4 x[ARRANGE_TURNS];
#pragma unroll
            for (int i = 0; i < ARRANGE_TURNS; ++i)
                if (arranger.has(group, i))
                    x[i] = arranger.load(next, at, group, i);
            wait_for_batches<1>();
            make_group(one, at, codes[(group + 1) % 2], stored, (group + 1) % GROUPS,
                       weights[(group + 1) % 2]);
#pragma unroll
            for (int i = 0; i < ARRANGE_TURNS; ++i)
                if (arranger.has(group, i))
                    arranger.store(arranged_of(ring, turn + 1), group, i, x[i]);
        }
        show_to_products();
        wait_for_batches<0>();
        stage = next;
        if (!is_last && unit + 1 < end)
            continue;
#pragma unroll
        for (int i = 0; i < PARTS * 4; ++i)
            settle(total[i / 4 / TOKEN_TILES][i / 4 % TOKEN_TILES][i % 4]);
        if (gather(p, shares, row_block, flag, total))
            store(p, at, row_block * ROWS, total);
        row_block = next_row_block;
        clear(total);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    quant_whole(const u16 *x, u16 *y, const u16 *residual, const u16 *bias, const char *codes,
                 const char *high, const char *scales, const char *blocks, float4 *partials,
                 int *arrived, int num_tokens, int num_rows, int num_spans, int x_stride,
                 int y_stride, int has_bias, int has_residual) {
    work({x, y, residual, bias, codes, high, scales, blocks, partials, arrived, num_tokens,
          num_rows, num_spans, x_stride, y_stride, has_bias, has_residual});
}
