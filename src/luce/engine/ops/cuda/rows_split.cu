// residual + x W^T for up to hundreds of rows of x and few rows of W, on Hopper.
//
// The columns are cut into eighths, whose sums are added up in pairs, and pairs of them, whoever
// has them: a row's bits do not depend on what else is there. A block of threads has some rows of W,
// some of x, and so many eighths. One warp has them copied to shared memory, W's as far as there is
// room before the kernels ahead are done; four others multiply. The blocks of a cluster have the
// same rows: they send their sums to the one of them that adds them up, for some rows of x each.
//
// Defined before: ROWS (of W), TOKENS (rows of x, of a block: a multiple of 16, at most 64), RANKS
// (blocks of a cluster), EIGHTH (of the columns, in chunks of 64), STAGES (chunks in shared
// memory), and what `hopper.cuh` and `swizzled_products.cuh` have.

#define WORKERS 128
#define THREADS (WORKERS + 32)
#define CHUNKS (8 / RANKS * EIGHTH)
#define LINE 128  // Bytes of 64 columns, as the copies swizzle them.
#define W_BYTES (ROWS * LINE)
#define CHUNK_BYTES (W_BYTES + TOKENS * LINE)
#define PITCH (ROWS + 8)  // Numbers from a row of sums to the next.
#define OWN (TOKENS / RANKS)  // Rows of x whose sums a block adds up.
#define FOURS ((OWN * ROWS / 4 + WORKERS - 1) / WORKERS)  // Times four results, of a thread.
#define SUMS_AT (STAGES * CHUNK_BYTES)
#define BARRIERS_AT (SUMS_AT + TOKENS * PITCH * 4)

struct Shared {
    // Products read 64 rows of x; of fewer, what follows is read too, for sums of nobody.
    char *chunks;
    float *sums;
    u64 *full, *free_again, *received;

    __device__ __forceinline__ Shared() {
        char *base = shared_memory();
        chunks = base + ((1024 - (shared_address(base) & 1023)) & 1023);
        sums = (float *)(chunks + SUMS_AT);
        full = (u64 *)(chunks + BARRIERS_AT);
        free_again = full + STAGES;
        received = free_again + STAGES;
    }
};

// What a block multiplies.
struct Matrices {
    const TensorMap *weights, *x;
    int row, token, column;

    __device__ __forceinline__ void copy_weights(const Shared &shared, int chunk) const {
        const int stage = chunk % STAGES;
        expect_bytes(shared.full + stage, CHUNK_BYTES);
        copy_rows(shared.chunks + stage * CHUNK_BYTES, weights, column + chunk * 64, row,
                  shared.full + stage);
    }

    __device__ __forceinline__ void copy_x(const Shared &shared, int chunk) const {
        const int stage = chunk % STAGES;
        copy_rows(shared.chunks + stage * CHUNK_BYTES + W_BYTES, x, column + chunk * 64, token,
                  shared.full + stage);
    }
};

// By one thread.
__device__ __forceinline__ void copy_all(const Matrices &matrices, const Shared &shared) {
    for (int chunk = 0; chunk < STAGES; chunk++)
        matrices.copy_weights(shared, chunk);
    wait_for_kernels_before();
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (chunk >= STAGES) {
            wait_for(shared.free_again + chunk % STAGES, chunk / STAGES & 1 ^ 1);
            matrices.copy_weights(shared, chunk);
        }
        matrices.copy_x(shared, chunk);
    }
}

// This warp is done with a chunk.
__device__ __forceinline__ void leave(const Shared &shared, int chunk) {
    if (chunk + STAGES < CHUNKS && threadIdx.x % 32 == 0)
        arrive(shared.free_again + chunk % STAGES);
}

struct Sums {
    float c[ROWS / 8][4];
};

__device__ __forceinline__ void multiply_eighth(Sums &sums, const Shared &shared, int first) {
#pragma unroll 1
    for (int chunk = first; chunk < first + EIGHTH; chunk++) {
        const int stage = chunk % STAGES;
        wait_for(shared.full + stage, chunk / STAGES & 1);
        const char *at = shared.chunks + stage * CHUNK_BYTES;
        const u64 right = swizzled(at, 16), left = swizzled(at + W_BYTES, 16);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; k++)
            multiply_shared(sums.c, advance(left, k * 32), advance(right, k * 32),
                            k || chunk > first);
        end_group();
        if (chunk > first) {
            wait_for_groups<1>();
            leave(shared, chunk - 1);
        }
    }
    wait_for_groups<0>();
    leave(shared, first + EIGHTH - 1);
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            settle(sums.c[i][k]);
}

template <int COUNT>
__device__ __forceinline__ void multiply_eighths(Sums &sums, const Shared &shared, int first) {
    if constexpr (COUNT == 1)
        return multiply_eighth(sums, shared, first);
    else {
        multiply_eighths<COUNT / 2>(sums, shared, first);
        Sums others;
        multiply_eighths<COUNT / 2>(others, shared, first + COUNT / 2 * EIGHTH);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                sums.c[i][k] += others.c[i][k];
    }
}

// To the blocks that add them up.
__device__ __forceinline__ void send(const Sums &sums, const Shared &shared, int rank) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool is_odd = lane % 2;
    if (warp * 16 >= TOKENS)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int token = warp * 16 + half * 8 + lane / 4, to = token / OWN;
        float *at = shared.sums + (rank * OWN + token % OWN) * PITCH + lane % 4 / 2 * 4 +
                    is_odd * 8;
        const u32 there = address_in_block<RANKS>(at, to);
        const u32 barrier = address_in_block<RANKS>(shared.received, to);
#pragma unroll
        for (int i = 0; i < ROWS / 8; i += 2) {
            // Of two times two neighbours, each of two lanes has four.
            const float *even = sums.c[i] + half * 2, *odd = sums.c[i + 1] + half * 2;
            const float low = __shfl_xor_sync(~0u, is_odd ? even[0] : odd[0], 1);
            const float high = __shfl_xor_sync(~0u, is_odd ? even[1] : odd[1], 1);
            const float4 v = is_odd ? make_float4(low, high, odd[0], odd[1])
                                    : make_float4(even[0], even[1], low, high);
            if (to == rank)
                *(float4 *)(at + i * 8) = v;
            else
                store_in_block<RANKS>(there + i * 32, v, barrier);
        }
    }
}

__device__ __forceinline__ void add(float4 &sum, const float4 &other) {
    sum.x += other.x;
    sum.y += other.y;
    sum.z += other.z;
    sum.w += other.w;
}

// Of all blocks.
__device__ __forceinline__ float4 sum_of_blocks(const float *sums) {
    float4 part[RANKS];
#pragma unroll
    for (int i = 0; i < RANKS; i++)
        part[i] = *(const float4 *)(sums + i * OWN * PITCH);
#pragma unroll
    for (int apart = 1; apart < RANKS; apart *= 2)
#pragma unroll
        for (int i = 0; i < RANKS; i += 2 * apart)
            add(part[i], part[i + apart]);
    return part[0];
}

// Four neighbouring results, of those that the block adds up.
struct Four {
    int token, column;
    i64 at;
    bool is_there;

    __device__ __forceinline__ Four(const Matrices &matrices, int rank, int count, int size,
                                    int turn) {
        const int unit = turn * WORKERS + threadIdx.x;
        token = unit / (ROWS / 4);
        column = unit % (ROWS / 4) * 4;
        const int of_all = matrices.token + rank * OWN + token;
        at = (i64)of_all * size + matrices.row + column;
        is_there = token < OWN && of_all < count;
    }
};

__device__ __forceinline__ uint2 with_residual(const uint2 &before, const float4 &sum) {
    return make_uint2(pack_bfloat16(sum.x + bfloat16_to_float(before.x),
                                    sum.y + bfloat16_to_float(before.x >> 16)),
                      pack_bfloat16(sum.z + bfloat16_to_float(before.y),
                                    sum.w + bfloat16_to_float(before.y >> 16)));
}

__device__ __forceinline__ void multiply_and_add(const Matrices &matrices, const Shared &shared,
                                                 int rank, const u16 *residual, u16 *out,
                                                 int count, int size) {
    wait_for_kernels_before();
    uint2 before[FOURS];
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        const Four four(matrices, rank, count, size, i);
        before[i] = four.is_there ? *(const uint2 *)(residual + four.at) : make_uint2(0, 0);
    }
    Sums sums;
    multiply_eighths<8 / RANKS>(sums, shared, 0);
    wait_for_cluster<RANKS>();
    send(sums, shared, rank);
    sync_threads(1, WORKERS);
    wait_for_stores<RANKS>(shared.received, 0);
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        const Four four(matrices, rank, count, size, i);
        if (!four.is_there)
            continue;
        const float4 sum = sum_of_blocks(shared.sums + four.token * PITCH + four.column);
        *(uint2 *)(out + four.at) = with_residual(before[i], sum);
    }
}

// Clusters (a tile of rows of W), tiles of rows of x. `count` are the rows of x, `size` those of W.
extern "C" __global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(THREADS, 1)
    rows_split(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap x,
               const u16 *residual, u16 *out, int count, int size) {
    const int rank = rank_in_cluster<RANKS>();
    const Matrices matrices = {&weights, &x, (int)blockIdx.x / RANKS * ROWS,
                               (int)blockIdx.y * TOKENS, rank * CHUNKS * 64};
    const Shared shared;
    if (threadIdx.x == WORKERS) {
        fetch_map(&weights);
        fetch_map(&x);
        for (int i = 0; i < STAGES; i++) {
            init_barrier(shared.full + i, 1);
            init_barrier(shared.free_again + i, WORKERS / 32);
        }
        init_barrier(shared.received, 1);
        show_barriers();
        expect_bytes(shared.received, (RANKS - 1) * OWN * ROWS * 4);
    }
    let_next_kernel_begin();
    __syncthreads();
    come_to_cluster<RANKS>();
    if (threadIdx.x < WORKERS)
        multiply_and_add(matrices, shared, rank, residual, out, count, size);
    else {
        if (threadIdx.x == WORKERS)
            copy_all(matrices, shared);
        __syncwarp();
        wait_for_cluster<RANKS>();
    }
}
