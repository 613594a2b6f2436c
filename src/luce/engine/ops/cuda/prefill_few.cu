// Causal attention of runs of at most 64 tokens over their paged context, on Hopper: so few
// queries fill no processor, so a cluster of blocks of threads takes those of a head.
//
// The context's tiles are dealt in runs to the blocks, every other tile of a run to each of two
// groups of four warps. Each group has weights and sums of its own; at the end the cluster adds
// them up in their order, each block for some of the queries. A row's bits depend on its sequence
// alone, but also on where the step ends: other than those of `prefill_attention.cu`, which adds
// tile by tile.
//
// After `prefill_parts.cuh`, with QUERIES 64, EACH 2, TURNS 0, and CLUSTER (blocks of a cluster).

#define PIECES (2 * CLUSTER)
#define LINES (QUERIES / CLUSTER)  // Of queries, which a block adds up.
#define PITCH (DIM + 8)            // Numbers of a line of sums: its neighbours' are in other banks.
#define SUMS (QUERIES * PITCH)     // Numbers of a group's, and behind them a float4 a query.

// A group's sums, largest scores and sums of weights, to where the cluster finds them.
__device__ __forceinline__ void leave_sums(const float (&o)[DIM / 8][4], const Softmax &softmax,
                                           float *to, int thread) {
    const int lane = thread % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = softmax.total[half];
        total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
        total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
        const int row = thread / 32 * 16 + lane / 4 + half * 8;
        if (lane % 4 == 0)
            ((float4 *)(to + SUMS))[row] = make_float4(softmax.top[half], total, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            *(float2 *)(to + row * PITCH + i * 8 + lane % 4 * 2) =
                make_float2(o[i][half * 2], o[i][half * 2 + 1]);
    }
}

// The `which`-th of all pieces' numbers, the pieces being two of each block.
__device__ __forceinline__ float4 of_piece(const float *sums, int which, int at) {
    const int group = which % 2 * (SUMS + 4 * QUERIES);
    return load_of_block<CLUSTER>((const float4 *)(sums + group + at), which / 2);
}

// This block's lines of results, four numbers a thread.
__device__ __forceinline__ void add_up(const float *sums, u16 *out, int stride, int rows, int rank,
                                       int thread) {
    const float scale = __int_as_float(SCALE);
    for (int at = thread; at < LINES * DIM / 4; at += 256) {
        const int row = rank * LINES + at / (DIM / 4), dim = at % (DIM / 4) * 4;
        if (row >= rows) return;
        float4 facts[PIECES], parts[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            facts[i] = of_piece(sums, i, SUMS + 4 * row);
            parts[i] = of_piece(sums, i, row * PITCH + dim);
        }
        float top = facts[0].x;
#pragma unroll
        for (int i = 1; i < PIECES; i++) top = fmaxf(top, facts[i].x);
        float total = 0.0f, sum[4] = {};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const float share = exp2_of(__fmul_rn(__fsub_rn(facts[i].x, top), scale));
            total = __fmaf_rn(facts[i].y, share, total);
            sum[0] = __fmaf_rn(parts[i].x, share, sum[0]);
            sum[1] = __fmaf_rn(parts[i].y, share, sum[1]);
            sum[2] = __fmaf_rn(parts[i].z, share, sum[2]);
            sum[3] = __fmaf_rn(parts[i].w, share, sum[3]);
        }
        const float whole = __frcp_rn(total);
        *(uint2 *)(out + (i64)row * stride + dim) =
            make_uint2(pack_bfloat16(__fmul_rn(sum[0], whole), __fmul_rn(sum[1], whole)),
                       pack_bfloat16(__fmul_rn(sum[2], whole), __fmul_rn(sum[3], whole)));
    }
}

// Cluster (query head, tile of queries).
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    prefill_few(const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values,
                const u16 *qkv, const int *tables, const int *rows, const int *context_lens,
                const int *query_starts, u16 *out, int first_sequence, int sequences,
                int table_stride, int token_stride, int out_stride) {
    let_next_kernel_begin();
    wait_for_kernels_before();
    QueryTile queries;
    if (!find_tile(queries, query_starts, first_sequence, sequences, blockIdx.y)) return;
    const int head = blockIdx.x / CLUSTER, rank = rank_in_cluster<CLUSTER>();
    const int sequence = queries.sequence, count = queries.count;
    const int own = queries.index * QUERIES, start = queries.start + own;
    const Shared shared;
    if (threadIdx.x == 0) shared.init_barriers(4);
    __syncthreads();
    const int length = context_lens[sequence], position = length - count + own;
    const int end = min(length, position + QUERIES), all = (end + TILE - 1) / TILE;
    const int first = rank * all / CLUSTER, tiles = (rank + 1) * all / CLUSTER - first;
    float *sums = (float *)shared.keys;
    const int group = (int)threadIdx.x / 128 - 1, thread = threadIdx.x - 128;
    if (group < 0) {
        give_registers<24>();
        if (threadIdx.x < 32)
            copy_context(&keys, &values,
                         tables + (i64)rows[sequence] * table_stride + first * PAGES, head / GROUP,
                         length - first * TILE, tiles, shared);
        __syncwarp();
        meet_cluster<CLUSTER>();
    } else {
        take_registers<240>();
        const Run run = {qkv + (i64)start * token_stride + head * DIM,
                         token_stride, count - own, position, length, first, tiles, thread, 256};
        Queries own_queries(run, shared.results, 1);
        float o[DIM / 8][4] = {};
        Softmax softmax;
        if (group < tiles) attend(shared, run, own_queries, group, group, o, softmax);
        // Until the other group is done with the tiles that sums are about to lie over.
        sync_threads(1, 256);
        leave_sums(o, softmax, sums + group * (SUMS + 4 * QUERIES), thread % 128);
        meet_cluster<CLUSTER>();
        add_up(sums, out + (i64)start * out_stride + head * DIM, out_stride, count - own, rank,
               thread);
    }
    __syncwarp();
    meet_cluster_again<CLUSTER>();
}
