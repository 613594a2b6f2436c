// What the two ways of attention of runs of tokens have in common: one block of threads for 128
// queries of a head (prefill_attention.cu), a cluster of them for 64 or less (prefill_few.cu).
//
// Source: Shah et al., "FlashAttention-3", 2024. A warp has pages copied to shared memory, two
// groups of four warps multiply. While the tensor cores add up the values of one tile of the
// context, the weights of the next are computed. Tiles begin at multiples of TILE whatever the
// chunk, all products have one shape and nothing is left to the compiler to contract.
//
// Defined before: DIM (of a head), TILE (of the context), PAGE (tokens), GROUP (query heads that
// share keys), STAGES, TURNS (whether the groups take turns), SCALE (log2(e) / sqrt(DIM), as
// bits), QUERIES (of a block), EACH (tiles between two of a group's, 1 or 2), and what
// `hopper.cuh` and `swizzled_products.cuh` have.

#define LINE 128  // Bytes of a row of 64 numbers, as the copies swizzle them.
#define HALVES (DIM / 64)
#define TILE_BYTES (TILE * DIM * 2)
#define RESULT_BYTES (QUERIES * DIM * 2)
#define PAGES (TILE / PAGE)
#define LEAST -1e30f  // Of what no score is below, but one that is hidden.

template <int COUNT> __device__ __forceinline__ void settle_all(float (&c)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) settle(c[i][k]);
}

struct Shared {
    char *results, *keys, *values;
    u64 *full_keys, *full_values, *free_keys, *free_values;

    __device__ __forceinline__ Shared() {
        char *base = shared_memory();
        base += (1024 - (shared_address(base) & 1023)) & 1023;
        results = base;
        keys = base + RESULT_BYTES;
        values = keys + STAGES * TILE_BYTES;
        full_keys = (u64 *)(values + STAGES * TILE_BYTES);
        full_values = full_keys + STAGES;
        free_keys = full_values + STAGES;
        free_values = free_keys + STAGES;
    }

    // By one thread; so many warps take each tile.
    __device__ __forceinline__ void init_barriers(int warps) const {
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(full_keys + stage, 1);
            init_barrier(full_values + stage, 1);
            init_barrier(free_keys + stage, warps);
            init_barrier(free_values + stage, warps);
        }
        show_barriers();
    }
};

// The softmax of two rows so far: largest score, this thread's part of the sum of weights, and by
// what earlier sums are to be multiplied.
struct Softmax {
    float top[2], total[2], shrink[2];

    __device__ __forceinline__ Softmax() {
        top[0] = top[1] = LEAST;
        total[0] = total[1] = 0.0f;
    }

    // Scores to weights.
    __device__ __forceinline__ void take(float (&s)[TILE / 8][4]) {
        const float scale = __int_as_float(SCALE);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float most[2] = {s[0][2 * row], s[0][2 * row + 1]};
#pragma unroll
            for (int i = 1; i < TILE / 8; i++) {
                most[0] = fmaxf(most[0], s[i][2 * row]);
                most[1] = fmaxf(most[1], s[i][2 * row + 1]);
            }
            float high = fmaxf(most[0], most[1]);
            high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
            high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
            high = fmaxf(high, top[row]);
            shrink[row] = exp2_of(__fmul_rn(__fsub_rn(top[row], high), scale));
            top[row] = high;
            const float offset = -__fmul_rn(high, scale);
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < TILE / 8; i++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float &value = s[i][2 * row + k];
                    value = exp2_of(__fmaf_rn(value, scale, offset));
                    sum[k] = __fadd_rn(sum[k], value);
                }
            total[row] = __fmaf_rn(total[row], shrink[row], __fadd_rn(sum[0], sum[1]));
        }
    }
};

__device__ __forceinline__ void pack_weights(u32 (&p)[TILE / 16][4],
                                             const float (&s)[TILE / 8][4]) {
#pragma unroll
    for (int i = 0; i < TILE / 8; i++) {
        p[i / 2][i % 2 * 2] = pack_bfloat16(s[i][0], s[i][1]);
        p[i / 2][i % 2 * 2 + 1] = pack_bfloat16(s[i][2], s[i][3]);
    }
}

__device__ __forceinline__ void begin_values(float (&o)[DIM / 8][4], u32 (&p)[TILE / 16][4],
                                             const char *values) {
    const u64 at = swizzled(values, TILE * LINE);
    begin_products();
#pragma unroll
    for (int step = 0; step < TILE / 16; step++)
        multiply_registers(o, p[step], advance(at, step * 16 * LINE));
    end_group();
}

__device__ __forceinline__ void hide(float (&s)[TILE / 8][4], int first, int position, int lane) {
#pragma unroll
    for (int i = 0; i < TILE / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + i * 8 + lane % 4 * 2 + k % 2 > position + k / 2 * 8)
                s[i][k] = __int_as_float(0xff800000);
}

// Rows of nothing: what is not there times a weight of nothing must be nothing.
__device__ __forceinline__ void clear_lines(char *tile, int first, int thread) {
    for (int at = thread; at < (TILE - first) * HALVES * 8; at += 128) {
        const int half = at / ((TILE - first) * 8), rest = at % ((TILE - first) * 8);
        *(uint4 *)(tile + half * (TILE * LINE) + first * LINE + rest * 16) =
            make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ void copy_context(const TensorMap *keys, const TensorMap *values,
                                             const int *table, int head, int length, int tiles,
                                             const Shared &shared) {
    const int lane = threadIdx.x % 32;
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES, parity = (tile / STAGES & 1) ^ 1;
        const int pages = min(PAGES, (length - tile * TILE + PAGE - 1) / PAGE);
        const int boxes = pages * HALVES;
        int blocks[(PAGES * HALVES + 31) / 32];
#pragma unroll
        for (int i = 0; i < (PAGES * HALVES + 31) / 32; i++) {
            const int box = lane + 32 * i;
            blocks[i] = box < boxes ? table[tile * PAGES + box / HALVES] : 0;
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            u64 *full = (part ? shared.full_values : shared.full_keys) + stage;
            char *to = (part ? shared.values : shared.keys) + stage * TILE_BYTES;
            wait_for((part ? shared.free_values : shared.free_keys) + stage, parity);
            if (lane == 0) expect_bytes(full, pages * PAGE * DIM * 2);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < (PAGES * HALVES + 31) / 32; i++) {
                const int box = lane + 32 * i;
                if (box < boxes)
                    copy_page(to + box % HALVES * (TILE * LINE) + box / HALVES * (PAGE * LINE),
                              part ? values : keys, box % HALVES * 64, head, blocks[i], full);
            }
        }
    }
}

// What a warp group does: 64 queries of a head, and every EACH-th of some tiles of their context.
struct Run {
    const u16 *queries;  // The first; the next is `stride` numbers on, and so many `rows` are there.
    int stride, rows;
    int position, length;        // Of the first query; of the context.
    int first_tile, tiles;       // Of the block's.
    int thread, threads;         // Of those that bring the queries.
};

#if DIM > 128
// 64 queries in the shared memory that their results go through: too many for registers.
struct Queries {
    const char *lines;

    __device__ __forceinline__ Queries(const Run &run, char *to, int barrier) : lines(to) {
#pragma unroll
        for (int at = run.thread; at < 64 * DIM / 8; at += run.threads) {
            const int row = at / (DIM / 8), chunk = at % (DIM / 8);
            uint4 value = make_uint4(0, 0, 0, 0);
            if (row < run.rows)
                value = *(const uint4 *)(run.queries + (i64)row * run.stride + chunk * 8);
            *(uint4 *)(to + chunk / 8 * (QUERIES * LINE) + row * LINE +
                       (chunk % 8 ^ row % 8) * 16) = value;
        }
        show_to_products();
        sync_threads(barrier, run.threads);
    }

    __device__ __forceinline__ void begin_scores(float (&s)[TILE / 8][4], const char *keys) {
        const u64 left = swizzled(lines, 16), right = swizzled(keys, 16);
        begin_products();
#pragma unroll
        for (int step = 0; step < DIM / 16; step++)
            multiply_shared(s, advance(left, step / 4 * (QUERIES * LINE) + step % 4 * 32),
                            advance(right, step / 4 * (TILE * LINE) + step % 4 * 32), step > 0);
        end_group();
    }
};
#else
// This thread's two of 64 queries, as products take them.
struct Queries {
    u32 numbers[DIM / 16][4];

    __device__ __forceinline__ Queries(const Run &run, char *, int) {
        const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int row = first + k % 2 * 8, dim = step * 16 + k / 2 * 8 + lane % 4 * 2;
                numbers[step][k] = 0;
                if (row < run.rows)
                    numbers[step][k] = *(const u32 *)(run.queries + (i64)row * run.stride + dim);
            }
    }

    __device__ __forceinline__ void begin_scores(float (&s)[TILE / 8][4], const char *keys) {
        const u64 right = swizzled(keys, 16);
        begin_products();
#pragma unroll
        for (int step = 0; step < DIM / 16; step++)
            multiply_rows(s, numbers[step],
                          advance(right, step / 4 * (TILE * LINE) + step % 4 * 32), step > 0);
        end_group();
    }
};
#endif

struct QueryTile {
    int sequence, index, start, count;  // In the sequence; the sequence's tokens in the step.
};

// The tile of queries with this number, counted through all sequences; whether there is one.
__device__ __forceinline__ bool find_tile(QueryTile &found, const int *query_starts,
                                          int first_sequence, int sequences, int number) {
    const int lane = threadIdx.x % 32;
    for (int base = 0; base < sequences; base += 32) {
        const int sequence = first_sequence + base + lane;
        const bool there = base + lane < sequences;
        const int start = there ? query_starts[sequence] : 0;
        const int count = there ? query_starts[sequence + 1] - start : 0;
        const int tiles = (count + QUERIES - 1) / QUERIES;
        int sum = tiles;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, sum, step);
            if (lane >= step) sum += other;
        }
        const u32 beyond = __ballot_sync(~0u, number < sum);
        if (beyond) {
            const int owner = __ffs(beyond) - 1;
            found.sequence = first_sequence + base + owner;
            found.index = number - __shfl_sync(~0u, sum - tiles, owner);
            found.start = __shfl_sync(~0u, start, owner);
            found.count = __shfl_sync(~0u, count, owner);
            return true;
        }
        number -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

// A group's tiles of the block's, from its `begin`-th on.
__device__ __forceinline__ void attend(const Shared &shared, const Run &run, Queries &queries,
                                       int group, int begin, float (&o)[DIM / 8][4],
                                       Softmax &softmax) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int position = run.position + thread / 32 * 16 + lane / 4;
    const int first = run.first_tile * TILE;
    float s[TILE / 8][4];
    u32 p[TILE / 16][4];
    int tile = begin;
    wait_for(shared.full_keys + begin, 0);
    queries.begin_scores(s, shared.keys + begin * TILE_BYTES);
    wait_for_groups<0>();
    settle_all(s);
    if (lane == 0) arrive(shared.free_keys + begin);
    if (first + begin * TILE + TILE - 1 > run.position)
        hide(s, first + begin * TILE, position, lane);
    softmax.take(s);
    pack_weights(p, s);
    for (tile += EACH; tile < run.tiles; tile += EACH) {
        const int stage = tile % STAGES, before = (tile - EACH) % STAGES;
        wait_for(shared.full_keys + stage, tile / STAGES & 1);
        if (TURNS) sync_threads(2 + group, 256);
        queries.begin_scores(s, shared.keys + stage * TILE_BYTES);
        wait_for(shared.full_values + before, (tile - EACH) / STAGES & 1);
        begin_values(o, p, shared.values + before * TILE_BYTES);
        if (TURNS && !(group && tile + 1 == run.tiles)) join_threads(3 - group, 256);
        wait_for_groups<1>();
        settle_all(s);
        if (lane == 0) arrive(shared.free_keys + stage);
        if (first + tile * TILE + TILE - 1 > run.position)
            hide(s, first + tile * TILE, position, lane);
        softmax.take(s);
        // Else the compiler computes the weights after the wait: it moves that up to the branch.
        settle_all(s);
        if (__all_sync(~0u, softmax.shrink[0] == 1.0f && softmax.shrink[1] == 1.0f)) {
            wait_for_groups<0>();
            settle_all(o);
        } else {
            wait_for_groups<0, 1>();
            settle_all(o);
#pragma unroll
            for (int i = 0; i < DIM / 8; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) o[i][k] = __fmul_rn(o[i][k], softmax.shrink[k / 2]);
        }
        if (lane == 0) arrive(shared.free_values + before);
        pack_weights(p, s);
    }
    tile -= EACH;
    const int last = tile % STAGES;
    wait_for(shared.full_values + last, tile / STAGES & 1);
    const int there = run.length - first - tile * TILE;
    if (there < TILE) {
        clear_lines(shared.values + last * TILE_BYTES, there, thread);
        show_to_products();
        sync_threads(4 + group, 128);
    }
    begin_values(o, p, shared.values + last * TILE_BYTES);
    wait_for_groups<0>();
    settle_all(o);
}
