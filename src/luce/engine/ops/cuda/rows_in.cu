// Product of dozens of rows with a matrix of few columns, y = x W^T, on Hopper; GATED: of gate and
// up, silu(gate) * up. NORMED: the product is multiplied by 1 / sqrt(mean(x^2) + eps) of its row.
//
// A block of threads has COLS rows of W and all columns of up to ROWS rows of x, in steps of 64
// columns. One warp has both copied to shared memory: W, which the kernel ahead does not make, before
// that is done, as far as there is room, the rest of it to the second-level cache. Four warps multiply
// 64 rows of x each, a step when it is there; NORMED, four more add up squares. A sum is made in one
// place, in the order of the columns: a row's bits do not depend on what else is there.
//
// Defined before: ROWS, COLS, STEPS (of 64 columns), STAGES (of them in shared memory), CHAINS (of
// products that follow one another), GATED, NORMED.

#define GROUPS ((ROWS + 63) / 64)
#define WORKERS (128 * GROUPS)
#define WARPS (4 * GROUPS * (1 + NORMED)) // That read a stage.
#define THREADS (32 * WARPS + 32)
#define LINE 128 // Bytes of a row of 64 numbers, as the copies swizzle them.
#define X_BYTES (ROWS * LINE)
#define W_BYTES (COLS * LINE)
#define EIGHTS (COLS / 8)
#define RESULTS (COLS / (1 + GATED))
#define LOG2_E 1.44269504f
#define IS_RING (STEPS > STAGES)

struct Shared {
    // Products read 64 rows of x; of fewer, what follows is read too, for sums of nobody.
    char *x, *w;
    u64 *full, *free_again;
    float *factors; // Of each row.

    __device__ __forceinline__ Shared() {
        char *base = shared_memory();
        x = base + ((1024 - (shared_address(base) & 1023)) & 1023);
        w = x + STAGES * X_BYTES;
        full = (u64 *)(w + STAGES * W_BYTES);
        free_again = full + STAGES;
        factors = (float *)(free_again + STAGES);
    }
};

struct Matrices {
    const TensorMap *x, *w;
    int first_row, first_result, num_results;

    __device__ __forceinline__ void copy_w(const Shared &shared, int step) const {
        const int stage = step % STAGES;
        char *to = shared.w + stage * W_BYTES;
        expect_bytes(shared.full + stage, X_BYTES + W_BYTES);
        copy_rows(to, w, step * 64, first_result, shared.full + stage);
        if (GATED)
            copy_rows(to + W_BYTES / 2, w, step * 64, num_results + first_result,
                      shared.full + stage);
    }

    __device__ __forceinline__ void fetch_w(int step) const {
        fetch_rows(w, step * 64, first_result);
        if (GATED)
            fetch_rows(w, step * 64, num_results + first_result);
    }

    __device__ __forceinline__ void copy_x(const Shared &shared, int step) const {
        copy_rows(shared.x + step % STAGES * X_BYTES, x, step * 64, first_row,
                  shared.full + step % STAGES);
    }
};

__device__ __forceinline__ void feed(const Shared &shared, const Matrices &matrices) {
#pragma unroll 1
    for (int step = STAGES; step < STEPS; ++step)
        matrices.fetch_w(step);
    let_next_kernel_begin();
    wait_for_kernels_before();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (step >= STAGES) {
            wait_for(shared.free_again + step % STAGES, step / STAGES & 1 ^ 1);
            matrices.copy_w(shared, step);
        }
        matrices.copy_x(shared, step);
    }
}

// A step of a stage is done with, by this warp.
__device__ __forceinline__ void leave(const Shared &shared, int step) {
    if (step + STAGES < STEPS && threadIdx.x % 32 == 0)
        arrive(shared.free_again + step % STAGES);
}

__device__ __forceinline__ void multiply_steps(const Shared &shared, float (&c)[EIGHTS][4]) {
    const int group = threadIdx.x / 128;
    const u64 x = swizzled(shared.x + group * 64 * LINE, 0), w = swizzled(shared.w, 0);
    float sums[CHAINS][EIGHTS][4];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int stage = step % STAGES;
        wait_for(shared.full + stage, step / STAGES & 1);
        begin_products();
#pragma unroll
        for (int part = 0; part < 4; ++part)
            multiply_shared(sums[part % CHAINS], advance(x, stage * X_BYTES + part * 32),
                            advance(w, stage * W_BYTES + part * 32), step * 4 + part >= CHAINS);
        end_group();
        if (IS_RING && step > 0) {
            wait_for_groups<1>();
            leave(shared, step - 1);
        }
    }
    wait_for_groups<0>();
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; ++i) {
        settle(sums[0][i / 4][i % 4]);
        c[i / 4][i % 4] = sums[0][i / 4][i % 4];
        if (CHAINS == 2) {
            settle(sums[CHAINS - 1][i / 4][i % 4]);
            c[i / 4][i % 4] = __fadd_rn(c[i / 4][i % 4], sums[CHAINS - 1][i / 4][i % 4]);
        }
    }
}

__device__ __forceinline__ void add_square(float &sum, u32 two) {
    const float low = bfloat16_to_float((u16)two), high = __int_as_float(two & 0xffff0000);
    sum = __fmaf_rn(low, low, sum);
    sum = __fmaf_rn(high, high, sum);
}

// Two threads a row, each half of a step's columns.
__device__ __forceinline__ void find_factors(const Shared &shared, float eps) {
    const int thread = threadIdx.x - WORKERS, row = thread / 2, half = thread % 2;
    float sums[4] = {};
#pragma unroll 2
    for (int step = 0; step < STEPS; ++step) {
        wait_for(shared.full + step % STAGES, step / STAGES & 1);
        const char *line = shared.x + step % STAGES * X_BYTES + row * LINE;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Two threads of a row and four rows read from all banks at once.
            const uint4 v = *(const uint4 *)(line + ((half * 4 + i) ^ row % 8) * 16);
            add_square(sums[0], v.x);
            add_square(sums[1], v.y);
            add_square(sums[2], v.z);
            add_square(sums[3], v.w);
        }
        if (IS_RING) {
            __syncwarp();
            leave(shared, step);
        }
    }
    float sum = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    if (half == 0)
        shared.factors[row] = inverse_root(__fmaf_rn(sum, 1.0f / (STEPS * 64), eps));
}

__device__ __forceinline__ void apply_factors(const Shared &shared, float (&c)[EIGHTS][4]) {
    const float *factors = shared.factors + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; ++i)
        c[i / 4][i % 4] = __fmul_rn(c[i / 4][i % 4], factors[i % 4 / 2 * 8]);
}

// Rounded where the separate operations round.
__device__ __forceinline__ float gated(float gate, float up) {
    gate = bfloat16_to_float(float_to_bfloat16(gate));
    const float silu = __fdividef(gate, 1.0f + exp2_of(gate * -LOG2_E));
    return bfloat16_to_float(float_to_bfloat16(silu)) * bfloat16_to_float(float_to_bfloat16(up));
}

__device__ __forceinline__ void swap_across(u32 &a, u32 &b, int bits) {
    const bool is_upper = threadIdx.x & bits;
    const u32 other = __shfl_xor_sync(~0u, is_upper ? a : b, bits);
    a = is_upper ? other : a;
    b = is_upper ? b : other;
}

// Of four neighbouring lanes the i-th gets the i-th words of all.
__device__ __forceinline__ void transpose(u32 (&v)[4]) {
    swap_across(v[0], v[1], 1);
    swap_across(v[2], v[3], 1);
    swap_across(v[0], v[2], 2);
    swap_across(v[1], v[3], 2);
}

__device__ __forceinline__ void store(const float (&c)[EIGHTS][4], const Matrices &matrices, u16 *y,
                                      int num_rows) {
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 2 * RESULTS / 8; i += 4) {
        // Four times eight results, of one row or of two.
        u32 v[4] = {};
#pragma unroll
        for (int k = 0; k < 4 && i + k < 2 * RESULTS / 8; ++k) {
            const int half = (i + k) / (RESULTS / 8), eight = (i + k) % (RESULTS / 8);
            float two[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                two[side] = c[eight][half * 2 + side];
                if (GATED)
                    two[side] =
                        gated(two[side], c[EIGHTS / 2 * GATED + eight][half * 2 + side]);
            }
            v[k] = pack_bfloat16(two[0], two[1]);
        }
        transpose(v);
        const int own = i + lane % 4, half = own / (RESULTS / 8);
        const int row = line + half * 8, result = own % (RESULTS / 8) * 8 + matrices.first_result;
        if (half < 2 && row < ROWS && matrices.first_row + row < num_rows &&
            result < matrices.num_results)
            *(uint4 *)(y + (i64)(matrices.first_row + row) * matrices.num_results + result) =
                make_uint4(v[0], v[1], v[2], v[3]);
    }
}

// Block of threads (results, rows).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rows_in(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, u16 *y,
            int num_rows, int num_results, int eps) {
    const Shared shared;
    const Matrices matrices = {&x, &w, (int)blockIdx.y * ROWS, (int)blockIdx.x * RESULTS,
                               num_results};
    // The same for a warp, as the compiler sees.
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == WARPS && is_chosen()) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(shared.full + stage, 1);
            init_barrier(shared.free_again + stage, WARPS);
        }
        show_barriers();
#pragma unroll
        for (int step = 0; step < STAGES && step < STEPS; ++step)
            matrices.copy_w(shared, step);
        fetch_map(&x);
    }
    __syncthreads();
    if (warp < WORKERS / 32) {
        float c[EIGHTS][4];
        multiply_steps(shared, c);
        if (NORMED) {
            sync_threads(1, 32 * WARPS);
            apply_factors(shared, c);
        }
        store(c, matrices, y, num_rows);
    } else if (warp < WARPS) {
        find_factors(shared, __int_as_float(eps));
        join_threads(1, 32 * WARPS);
    } else if (is_chosen()) {
        feed(shared, matrices);
    }
}
