// What comes before a mixture of 5 to 16 tokens: their rows normalised, as words of 16-bit
// integers, and the router's logits.
//
// The first blocks of threads have eight logits of all tokens each, their warps a run of columns:
// tensor cores add up those, then the block its warps. The others have a token's words each.

#define RUN (HIDDEN / WARPS)
#define CHUNKS (RUN / 32)
#define LOGIT_BLOCKS ((LOGITS + 7) / 8)

// A sum over a block of what its warps have, in one order.
__device__ __forceinline__ float sum_of_warps(const float *of_warps, int stride) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i)
        sum += of_warps[i * stride];
    return sum;
}

__device__ __forceinline__ float square(u32 word) {
    const float low = bfloat16_to_float((u16)word), high = bfloat16_to_float((u16)(word >> 16));
    return fmaf(low, low, high * high);
}

__device__ __forceinline__ float squares_of(const uint4 &words) {
    return square(words.x) + square(words.y) + square(words.z) + square(words.w);
}

// Rounded before the weight, as `ops.pointwise.RmsNorm` has it.
__device__ __forceinline__ u32 normal(u32 word, float inverse, u32 weight) {
    const float low = bfloat16_to_float((u16)word), high = bfloat16_to_float((u16)(word >> 16));
    return multiply_bfloat16(pack_bfloat16(low * inverse, high * inverse), weight);
}

__device__ __forceinline__ u32 word_of(const uint4 &words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// Eight logits of all tokens. A chunk is 32 columns, of which a lane has eight of two tokens and of
// a row of the router: four for each of two products, so that what it reads lies together.
__device__ __forceinline__ void leave_logits(const u16 *hidden, const u16 *norm,
                                             const u16 *router, u16 *logits, float eps,
                                             int logits_stride, int tokens) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4;
    const int column = warp * RUN + lane % 4 * 8, logit = blockIdx.x * 8 + quad;
    float *sums = (float *)shared_memory(), *squares = sums + WARPS * 128;
    uint4 w[CHUNKS], factors[CHUNKS], x[CHUNKS][2];
    const u16 *weights = router + (i64)min(logit, LOGITS - 1) * HIDDEN + column;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
        w[i] = __ldg((const uint4 *)(weights + i * 32));
        factors[i] = __ldg((const uint4 *)(norm + column + i * 32));
    }
    wait_for_kernels_before();
    float of_row[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int token = min(quad + 8 * r, tokens - 1);
            x[i][r] = __ldcg((const uint4 *)(hidden + (i64)token * HIDDEN + column + i * 32));
        }
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            of_row[r] += squares_of(x[i][r]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        of_row[r] += of_lane_across(of_row[r], 1);
        of_row[r] += of_lane_across(of_row[r], 2);
        if (lane % 4 == 0)
            squares[warp * 16 + quad + 8 * r] = of_row[r];
    }
    __syncthreads();
    float inverse[2], c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r)
        inverse[r] = inverse_root(sum_of_warps(squares + quad + 8 * r, 16) * (1.0f / HIDDEN) + eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 a[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                a[k] = normal(word_of(x[i][k % 2], 2 * half + k / 2), inverse[k % 2],
                              word_of(factors[i], 2 * half + k / 2));
            multiply(c, a[0], a[1], a[2], a[3], word_of(w[i], 2 * half),
                     word_of(w[i], 2 * half + 1));
        }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        sums[warp * 128 + (quad + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
    __syncthreads();
    const int token = threadIdx.x / 8, mine = blockIdx.x * 8 + threadIdx.x % 8;
    if (token < tokens && mine < LOGITS)
        logits[(i64)token * logits_stride + mine] =
            float_to_bfloat16(sum_of_warps(sums + threadIdx.x, 128));
}

// A token's words: of four lanes that have a group each has eight columns of it.
__device__ __forceinline__ void leave_words(const u16 *hidden, const u16 *norm, char *words,
                                            float eps, int token) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *squares = (float *)shared_memory();
    const int turns = (HIDDEN + WARPS * 256 - 1) / (WARPS * 256), eights = HIDDEN / 8;
    uint4 x[turns], factors[turns];
#pragma unroll
    for (int i = 0; i < turns; ++i)
        factors[i] = __ldg((const uint4 *)norm +
                           min(i * (WARPS * 32) + (int)threadIdx.x, eights - 1));
    wait_for_kernels_before();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < turns; ++i)
        x[i] = __ldcg((const uint4 *)(hidden + (i64)token * HIDDEN) +
                      min(i * (WARPS * 32) + (int)threadIdx.x, eights - 1));
#pragma unroll
    for (int i = 0; i < turns; ++i)
        if (i * (WARPS * 32) + (int)threadIdx.x < eights)
            sum += squares_of(x[i]);
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2)
        sum += of_lane_across(sum, bits);
    if (lane == 0)
        squares[warp] = sum;
    __syncthreads();
    const float inverse = inverse_root(sum_of_warps(squares, 1) * (1.0f / HIDDEN) + eps);
    char *row = words + (i64)token * (HIDDEN / 32 * 72);
#pragma unroll
    for (int i = 0; i < turns; ++i) {
        float columns[8], largest = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 both = normal(word_of(x[i], k), inverse, word_of(factors[i], k));
            columns[2 * k] = bfloat16_to_float((u16)both);
            columns[2 * k + 1] = bfloat16_to_float((u16)(both >> 16));
        }
#pragma unroll
        for (int k = 0; k < 8; ++k)
            largest = fmaxf(fabsf(columns[k]), largest);
        largest = fmaxf(of_lane_across(largest, 1), largest);
        largest = fmaxf(of_lane_across(largest, 2), largest);
        int own = 0;
        const uint4 four = words_of(columns, inverse_of(largest), own);
        float total = (float)own;
        // Whole numbers below 2^24.
        total += of_lane_across(total, 1);
        total += of_lane_across(total, 2);
        const int group = (i * (WARPS * 32) + (int)threadIdx.x) / 4;
        if (group * 4 >= eights)
            continue;
        *(uint4 *)(row + ((lane % 4) * (HIDDEN / 32) + group) * 16) = four;
        if (lane % 4 == 0)
            *(float2 *)(row + HIDDEN / 32 * 64 + group * 8) = {scale_of(largest), total};
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    moe_many_stage(const u16 *hidden, const u16 *norm, const u16 *router, char *words, u16 *logits,
                   int eps_bits, int logits_stride, int tokens) {
    const float eps = __int_as_float(eps_bits);
    let_next_kernel_begin();
    if (blockIdx.x < LOGIT_BLOCKS)
        leave_logits(hidden, norm, router, logits, eps, logits_stride, tokens);
    else
        leave_words(hidden, norm, words, eps, blockIdx.x - LOGIT_BLOCKS);
}
