// hidden += the weighted sum of a token's experts' down products, and the shared expert's by its
// gate; what they multiply is as moe_words_inner.cu leaves it.
//
// A block of threads has some rows of all of a token's experts; each warp has those of one expert,
// each lane a run of their columns. Sums meet in shared memory.

#define COLUMNS (SIZE / 32)
#define EIGHTS (COLUMNS / 8)
#define EACH (CHOSEN + HAS_SHARED)
#define ROWS 8

// A run of columns, as 16-bit integers of its largest one.
struct Inputs {
    int words[4 * EIGHTS];
    float scale, sum;

    // From a row that lies column by column of its groups.
    __device__ __forceinline__ Inputs(const float *x) {
        const int first = threadIdx.x % 32 * COLUMNS;
        const float *from = x + first % 32 * (SIZE / 32) + first / 32;
        float columns[COLUMNS], largest = 0.0f;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            columns[i] = __ldcg(from + i * (SIZE / 32));
            largest = larger(fabsf(columns[i]), largest);
        }
        const float inverse = largest > 0.0f ? 32767.0f * reciprocal(largest) : 0.0f;
        int total = 0;
#pragma unroll
        for (int w = 0; w < 4 * EIGHTS; ++w) {
            const int low = (int)rintf(columns[w / 4 * 8 + w % 4] * inverse);
            const int high = (int)rintf(columns[w / 4 * 8 + w % 4 + 4] * inverse);
            words[w] = (low & 0xffff) | (int)((u32)high << 16);
            total += low + high;
        }
        scale = largest * (1.0f / 32767.0f);
        sum = (float)total;
    }
};

extern "C" __global__ void __launch_bounds__(EACH * 32, BLOCKS)
    moe_words_outer(const float *inner, const float *s_inner, const u16 *logits, u16 *hidden,
                    const char *codes, const u16 *scales, const u32 *blocks, const char *s_codes,
                    const u16 *s_scales, const u32 *s_blocks, int logits_stride) {
    const int lane = threadIdx.x % 32, warp = of_first_lane(threadIdx.x / 32);
    const int token = blockIdx.y, first = blockIdx.x * ROWS;
    const bool is_shared = HAS_SHARED && warp == CHOSEN;
    float *results = (float *)shared_memory();
    let_next_kernel_begin();
    // Logits are known, and so is hidden: the kernel ahead let this one begin after it had waited
    // for them.
    logits += (i64)token * logits_stride;
    u32 row = first;
    float share;
    if (is_shared) {
        share = sigmoid(bfloat16_to_float(__ldcg(logits + EXPERTS)));
    } else {
        Choice found(logits);
        u32 best = found.take(), mine = best;
        const float largest = logit_of(best);
        float total = 1.0f;
#pragma unroll 1
        for (int i = 1; i < CHOSEN; ++i) {
            best = found.take();
            mine = i == warp ? best : mine;
            total += exp2_of((logit_of(best) - largest) * LOG2_E);
        }
        if (!NORM_WEIGHTS)
            total += found.shares(largest);
        const float part = exp2_of((logit_of(mine) - largest) * LOG2_E) * reciprocal(total);
        share = bfloat16_to_float(float_to_bfloat16(part));
        row += (u32)expert_of(mine) * HIDDEN;
    }
    const Place<SIZE> place(is_shared ? s_codes : codes, is_shared ? s_scales : scales,
                            is_shared ? s_blocks : blocks, row, lane * COLUMNS);
    Run<EIGHTS> runs[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        runs[r].load(place, r, 0);
    u16 *at = hidden + (i64)token * HIDDEN + first + threadIdx.x;
    const float old = threadIdx.x < ROWS ? bfloat16_to_float(__ldcg(at)) : 0.0f;
    wait_for_kernels_before();
    const Inputs x(is_shared ? s_inner + token * SIZE : inner + (token * CHOSEN + warp) * SIZE);
    float sums[ROWS];
    const float scale = x.scale * share;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        sums[r] = runs[r].times(x.words, x.sum) * scale;
    const float sum = sum_of_lanes(sums);
    if (lane % (32 / ROWS) == 0)
        results[warp * ROWS + lane / (32 / ROWS)] = sum;
    __syncthreads();
    if (threadIdx.x < ROWS) {
        float total = old;
#pragma unroll
        for (int each = 0; each < EACH; ++each)
            total += results[each * ROWS + threadIdx.x];
        *at = float_to_bfloat16(total);
    }
}
