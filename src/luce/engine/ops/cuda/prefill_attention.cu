// Causal attention of runs of tokens over their paged context, on Hopper: a block of threads takes
// 128 queries of one head, 64 for each of two groups of four warps, and goes through the context.
// A row's bits depend on its own context alone.
//
// After `prefill_parts.cuh`, with QUERIES 128 and EACH 1.

// A warp's 16 rows, through shared memory, so that each is written in one go.
__device__ __forceinline__ void store_rows(const float (&o)[DIM / 8][4], const Softmax &softmax,
                                           char *scratch, u16 *to, int stride, int rows,
                                           int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = softmax.total[half];
        total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
        total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
        const float share = __frcp_rn(total);
        const int row = lane / 4 + half * 8;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            *(u32 *)(scratch + i / 8 * (QUERIES * LINE) + row * LINE + (i % 8 ^ row % 8) * 16 +
                     lane % 4 * 4) = pack_bfloat16(__fmul_rn(o[i][half * 2], share),
                                                   __fmul_rn(o[i][half * 2 + 1], share));
    }
    __syncwarp();
#pragma unroll
    for (int at = lane; at < 16 * DIM / 8; at += 32) {
        const int row = at / (DIM / 8), chunk = at % (DIM / 8);
        if (row < rows)
            *(uint4 *)(to + (i64)row * stride + chunk * 8) =
                *(const uint4 *)(scratch + chunk / 8 * (QUERIES * LINE) + row * LINE +
                                 (chunk % 8 ^ row % 8) * 16);
    }
}

// Block of threads (query head, tile of queries); a sequence's last tiles, the longest, begin
// first.
extern "C" __global__ void __launch_bounds__(384, 1)
    prefill_attention(const __grid_constant__ TensorMap keys,
                      const __grid_constant__ TensorMap values, const u16 *qkv, const int *tables,
                      const int *rows, const int *context_lens, const int *query_starts, u16 *out,
                      int first_sequence, int sequences, int table_stride, int token_stride,
                      int out_stride) {
    let_next_kernel_begin();
    wait_for_kernels_before();
    QueryTile queries;
    if (!find_tile(queries, query_starts, first_sequence, sequences, gridDim.y - 1 - blockIdx.y))
        return;
    const int head = blockIdx.x, sequence = queries.sequence, start = queries.start;
    const int first = queries.index * QUERIES, count = queries.count;
    const Shared shared;
    if (threadIdx.x == 0) shared.init_barriers(8);
    __syncthreads();
    const int length = context_lens[sequence], before = length - count;
    const int end = min(length, before + first + QUERIES), tiles = (end + TILE - 1) / TILE;
    if (threadIdx.x < 128) {
        give_registers<24>();
        if (threadIdx.x < 32)
            copy_context(&keys, &values, tables + (i64)rows[sequence] * table_stride,
                         head / GROUP, length, tiles, shared);
        return;
    }
    take_registers<240>();
    const int group = threadIdx.x / 128 - 1, thread = threadIdx.x % 128;
    const int own = first + group * 64;
    const Run run = {qkv + (i64)(start + own) * token_stride + head * DIM,
                     token_stride, count - own, before + own, length, 0, tiles, thread, 128};
    if (TURNS && group && tiles > 1) join_threads(2, 256);
    Queries own_queries(run, shared.results + group * 64 * LINE, 4 + group);
    float o[DIM / 8][4] = {};
    Softmax softmax;
    attend(shared, run, own_queries, group, 0, o, softmax);
    const int line = thread / 32 * 16;
    store_rows(o, softmax, shared.results + (group * 64 + line) * LINE,
               out + (i64)(start + own + line) * out_stride + head * DIM, out_stride,
               count - own - line, thread % 32);
}
