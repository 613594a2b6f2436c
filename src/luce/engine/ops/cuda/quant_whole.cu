// Matrix of quantised rows times dozens of vectors. All units, of some rows by a span of columns,
// are one line that blocks of threads share out (quant_shares.cuh). Codes become whole weights in
// registers (quant_weights.cuh), four warps multiply them together, and tensor cores sum over all
// columns: nothing is left to do once products are begun.
//
// Four warps feed the stages, in which x is arranged; each other one goes on when a stage is full,
// and says when it is done with one. Codes are read two groups, weights made one group ahead of
// their products.

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

// When a stage is full, and when it is free again.
__device__ __forceinline__ u64 *full(char *stage) { return (u64 *)(stage + FULL_AT); }
__device__ __forceinline__ u64 *free_again(char *stage) { return (u64 *)(stage + FREE_AT); }

// A stage of the ring, and the parity of its phase.
struct Turn {
    char *ring, *stage;
    int parity;

    __device__ __forceinline__ void go_on() {
        const bool is_last = stage == ring + (STAGES - 1) * STAGE_BYTES;
        stage = is_last ? ring : stage + STAGE_BYTES;
        parity ^= is_last;
    }
};

__device__ __forceinline__ void begin_ring(char *ring) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            // Each thread's copies, and each warp's x.
            init_barrier(full(ring + i * STAGE_BYTES), FEEDERS + FEED_WARPS);
            init_barrier(free_again(ring + i * STAGE_BYTES), ROW_WARPS);
        }
        show_barriers();
    }
    __syncthreads();
}

__device__ __forceinline__ void feed(const Problem &p, char *ring, int begin, int end) {
    MatrixFeed matrix(p, begin);
    VectorFeed vectors(p, matrix.span);
    const int first = min(STAGES, end - begin);
    // The kernel before may still be making x; weights are there.
#pragma unroll 1
    for (int stage = 0; stage < first; ++stage) {
        matrix.copy(p, ring + stage * STAGE_BYTES);
        arrive_after_copies(full(ring + stage * STAGE_BYTES));
    }
    if (EARLY) {
        let_next_kernel_begin();
        wait_for_kernels_before();
    }
    vectors.load(p);
    Turn turn = {ring, ring, 1};
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
        if (unit - begin >= STAGES) {
            wait_for(free_again(turn.stage), turn.parity);
            matrix.copy(p, turn.stage);
            arrive_after_copies(full(turn.stage));
        }
        vectors.store(turn.stage);
        meet_warp();
        if (threadIdx.x % 32 == 0)
            arrive(full(turn.stage));
        vectors.load(p);
        turn.go_on();
    }
}

__device__ __forceinline__ void multiply_units(const Problem &p, char *ring, const Shares &shares,
                                               int begin, int end) {
    const Place at;
    const Constants one(p);
    int row_block = begin / p.num_spans, span = begin % p.num_spans;
    if (EARLY)
        wait_for_kernels_before();
    const bool is_first_lane = threadIdx.x % 32 == 0;
    Turn turn = {ring, ring, 0};
    wait_for(full(ring), 0);
    RowScales stored;
    load_scales(p, ring, at, row_block * ROWS, span, stored);
    GroupWeights weights[2];
    GroupCodes codes[2];
    load_group(ring, at, 0, codes[0]);
    load_group(ring, at, 1, codes[1]);
    make_group(one, at, codes[0], stored, 0, weights[0]);
    Totals total;
    clear(total);
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
        Turn next = turn;
        next.go_on();
        const bool is_last = ++span == p.num_spans;
        const int next_row_block = row_block + is_last;
        span = is_last ? 0 : span;
        const u64 arranged = shared_matrix_of_warp(turn.stage + X_AT);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            begin_products();
            begin_group(arranged, group, weights[group % 2], total);
            commit_products();
            // After the last unit, what lies there is made weights of.
            if (group + 2 == GROUPS && unit + 1 < end)
                wait_for(full(next.stage), next.parity);
            if (group + 2 < GROUPS)
                load_group(turn.stage, at, group + 2, codes[group % 2]);
            else
                load_group(next.stage, at, group + 2 - GROUPS, codes[group % 2]);
            wait_for_batches<1>();
            make_group(one, at, codes[(group + 1) % 2], stored, (group + 1) % GROUPS,
                       weights[(group + 1) % 2]);
            if (group + 2 == GROUPS)
                load_scales(p, next.stage, at, next_row_block * ROWS, span, stored);
        }
        wait_for_batches<0>();
#pragma unroll
        for (int i = 0; i < PARTS * 4; ++i)
            settle(total[i / 4 / TOKEN_TILES][i / 4 % TOKEN_TILES][i % 4]);
        if (is_first_lane)
            arrive(free_again(turn.stage));
        turn = next;
        if (!is_last && unit + 1 < end)
            continue;
        if (gather(p, shares, row_block, (int *)(ring + FLAG_AT), total))
            store(p, at, row_block * ROWS, total);
        row_block = next_row_block;
        clear(total);
    }
}

__device__ __forceinline__ void work(const Problem &p) {
    char *ring = shared_memory();
    begin_ring(ring);
    const int row_blocks = (p.num_rows + ROWS - 1) / ROWS;
    const Shares shares = {(u32)row_blocks * p.num_spans, (u32)gridDim.x};
    const int begin = shares.begin(blockIdx.x), end = shares.begin(blockIdx.x + 1);
    if (threadIdx.x < WORKERS) {
        if (GIVES_REGISTERS)
            take_registers<136>();
        multiply_units(p, ring, shares, begin, end);
    } else {
        if (GIVES_REGISTERS)
            give_registers<104>();
        feed(p, ring, begin, end);
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
