// Gate and up of dozens of rows and few columns, and SwiGLU's gate, on Hopper: y = silu(g) * u with
// g, u = x W^T, the rows of W being gate's and then up's.
//
// A block of threads has COLS rows of W, half of them of each, and all columns of up to ROWS rows of x, in steps of 64
// columns. One warp has both copied to shared memory: W, which the kernel ahead does not make, before
// that is done, as far as there is room. Four warps multiply 64 rows of x each, a step when it is
// there. A sum is made in one place, in the order of the columns: a row's bits do not depend on what
// else is there.
//
// Defined before: ROWS, COLS, STEPS (of 64 columns), STAGES (of them in shared memory), and what
// `hopper.cuh` and `swizzled_products.cuh` have.

#define GROUPS ((ROWS + 63) / 64)
#define WARPS (4 * GROUPS) // That multiply.
#define LINE 128 // Bytes of a row of 64 numbers, as the copies swizzle them.
#define X_BYTES (ROWS * LINE)
#define W_BYTES (COLS * LINE)
#define EIGHTS (COLS / 8)
#define RESULTS (COLS / 2)
#define LOG2_E 1.44269504f
#define IS_RING (STEPS > STAGES)

struct Shared {
    // Products read 64 rows of x; of fewer, what follows is read too, for sums of nobody.
    char *x, *w;
    u64 *full, *free_again;

    __device__ __forceinline__ Shared() {
        char *base = shared_memory();
        x = base + ((1024 - (shared_address(base) & 1023)) & 1023);
        w = x + STAGES * X_BYTES;
        full = (u64 *)(w + STAGES * W_BYTES);
        free_again = full + STAGES;
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
        copy_rows(to + W_BYTES / 2, w, step * 64, num_results + first_result, shared.full + stage);
    }

    __device__ __forceinline__ void copy_x(const Shared &shared, int step) const {
        copy_rows(shared.x + step % STAGES * X_BYTES, x, step * 64, first_row,
                  shared.full + step % STAGES);
    }
};

__device__ __forceinline__ void feed(const Shared &shared, const Matrices &matrices) {
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
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int stage = step % STAGES;
        wait_for(shared.full + stage, step / STAGES & 1);
        begin_products();
#pragma unroll
        for (int part = 0; part < 4; ++part)
            multiply_shared(c, advance(x, stage * X_BYTES + part * 32),
                            advance(w, stage * W_BYTES + part * 32), step + part > 0);
        end_group();
        if (IS_RING && step > 0) {
            wait_for_groups<1>();
            leave(shared, step - 1);
        }
    }
    wait_for_groups<0>();
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; ++i)
        settle(c[i / 4][i % 4]);
}

__device__ __forceinline__ float silu(float x) {
    return __fmul_rn(x, reciprocal_of(__fadd_rn(1.0f, exp2_of(__fmul_rn(x, -LOG2_E)))));
}

// Two results, rounded where the separate operations round.
__device__ __forceinline__ u32 gated(const float *gate, const float *up) {
    const u32 rounded = pack_bfloat16(gate[0], gate[1]);
    const u32 half = pack_bfloat16(silu(bfloat16_to_float((u16)rounded)),
                                   silu(__int_as_float(rounded & 0xffff0000)));
    return multiply_bfloat16(half, pack_bfloat16(up[0], up[1]));
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
            v[k] = gated(c[eight] + half * 2, c[EIGHTS / 2 + eight] + half * 2);
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
extern "C" __global__ void __launch_bounds__(32 * WARPS + 32, 1)
    rows_in(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, u16 *y,
            int num_rows, int num_results) {
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
    if (warp < WARPS) {
        float c[EIGHTS][4];
        multiply_steps(shared, c);
        store(c, matrices, y, num_rows);
    } else if (is_chosen()) {
        feed(shared, matrices);
    }
}
