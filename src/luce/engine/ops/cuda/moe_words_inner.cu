// silu(gate x) * up x of each pair of a token and an expert, and of the shared expert; up to four
// tokens, whose normalised rows are words of 16-bit integers.
//
// A warp has some rows of the gate and as many of up, all columns: each lane whole groups. It finds
// its expert out of the router's logits itself, and has all its weights on their way at once.

#define GROUPS (HIDDEN / 32)
#define OF_LANE (GROUPS / 32)
#define ROWS (8 / OF_LANE)
#define EACH (CHOSEN + HAS_SHARED)
#define X_WORDS 19

struct Inputs {
    int words[OF_LANE][16];
    float scale[OF_LANE], sum[OF_LANE];

    __device__ __forceinline__ Inputs(const int *x) {
        const int *from = x + threadIdx.x % 32;
#pragma unroll
        for (int o = 0; o < OF_LANE; ++o) {
#pragma unroll
            for (int w = 0; w < 16; ++w)
                words[o][w] = __ldcg(from + w * GROUPS + o * 32);
            scale[o] = __int_as_float(__ldcg(from + 16 * GROUPS + o * 32));
            sum[o] = (float)(__ldcg(from + 17 * GROUPS + o * 32) +
                             __ldcg(from + 18 * GROUPS + o * 32));
        }
    }
};

struct Weights {
    Run<4> runs[2 * ROWS][OF_LANE];

    // Gates from `row` on, and their ups.
    __device__ __forceinline__ Weights(const char *codes, const u16 *scales, const u32 *blocks,
                                       u32 row) {
        const Place<HIDDEN> place(codes, scales, blocks, row, threadIdx.x % 32 * 32);
#pragma unroll
        for (int i = 0; i < 2 * ROWS; ++i)
#pragma unroll
            for (int o = 0; o < OF_LANE; ++o)
                runs[i][o].load(place, i % ROWS + i / ROWS * SIZE, o * 1024);
    }
};

// Each lane's sum is that of the gate's or up's row that `sum_of_lanes` gives it.
__device__ __forceinline__ void leave(const Weights &weights, const Inputs &x, int first,
                                      float *results) {
    const int lane = threadIdx.x % 32;
    float sums[2 * ROWS];
#pragma unroll
    for (int i = 0; i < 2 * ROWS; ++i) {
        sums[i] = 0.0f;
#pragma unroll
        for (int o = 0; o < OF_LANE; ++o)
            sums[i] = fmaf(weights.runs[i][o].times(x.words[o], x.sum[o]), x.scale[o], sums[i]);
    }
    const float gate = sum_of_lanes(sums), up = of_lane_across(gate, 16);
    // Column by column of the row's groups.
    const int out = first + lane / (16 / ROWS);
    if (lane < 16 && lane % (16 / ROWS) == 0)
        results[out % 32 * (SIZE / 32) + out / 32] = gate * sigmoid(gate) * up;
}

// Have what the next kernel reads of an expert brought nearer, some of it by each warp.
__device__ __forceinline__ void ask_ahead(const char *codes, int first) {
    const int bytes = HIDDEN * (SIZE / 2) / (SIZE / ROWS);
    const char *mine = codes + (i64)(first / ROWS) * bytes;
#pragma unroll
    for (int at = 0; at < bytes; at += 32 * 128)
        if (at + threadIdx.x % 32 * 128 < bytes)
            bring_closer((const u16 *)(mine + at + threadIdx.x % 32 * 128));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    moe_words_inner(const int *x, const u16 *logits, float *inner, float *s_inner,
                    const char *codes, const u16 *scales, const u32 *blocks, const char *s_codes,
                    const u16 *s_scales, const u32 *s_blocks, const char *next, const char *s_next,
                    u64 *loads, int logits_stride) {
    const int warp = of_first_lane(threadIdx.x / 32);
    const int first = (blockIdx.x * WARPS + warp) * ROWS;
    const int token = blockIdx.y / EACH, choice = blockIdx.y % EACH;
    const int *row = x + token * (X_WORDS * GROUPS);
    if (HAS_SHARED && choice == CHOSEN) {
        const Weights weights(s_codes, s_scales, s_blocks, first);
        wait_for_kernels_before();
        let_next_kernel_begin();
        ask_ahead(s_next, first);
        leave(weights, Inputs(row), first, s_inner + token * SIZE);
        return;
    }
    wait_for_kernels_before();
    // Only now: so the next kernel knows the logits.
    let_next_kernel_begin();
    Choice found(logits + (i64)token * logits_stride);
    u32 best = found.take();
#pragma unroll 1
    for (int i = 0; i < choice; ++i)
        best = found.take();
    const int expert = expert_of(best);
    const Weights weights(codes, scales, blocks, (u32)expert * (2 * SIZE) + first);
    const Inputs mine(row);
    ask_ahead(next + (i64)expert * (HIDDEN * (SIZE / 2)), first);
    if (first == 0 && threadIdx.x == 0)
        count_up(loads + expert);
    leave(weights, mine, first, inner + (token * CHOSEN + choice) * SIZE);
}
