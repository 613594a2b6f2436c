// hidden += the weighted sum of a token's rows, its experts' in their order, then the shared one's.

#define EACH (CHOSEN + HAS_SHARED)

extern "C" __global__ void __launch_bounds__(ALL_THREADS)
    moe_many_sum(const float *results, const u16 *weights, const u16 *gates, u16 *hidden,
                 int *arrivals, int blocks, int gates_stride, int tokens) {
    const int token = blockIdx.y, column = (blockIdx.x * ALL_THREADS + threadIdx.x) * 4;
    let_next_kernel_begin();
    wait_for_kernels_before();
    if (blockIdx.x == 0 && token == 0)
        for (int i = threadIdx.x; i < blocks; i += ALL_THREADS)
            arrivals[i] = 0;
    if (column >= HIDDEN)
        return;
    uint2 *at = (uint2 *)(hidden + (i64)token * HIDDEN + column);
    const uint2 old = __ldcg(at);
    float4 rows[EACH];
    float factors[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int line = i < CHOSEN ? token * CHOSEN + i : tokens * CHOSEN + token;
        rows[i] = __ldcg((const float4 *)(results + (i64)line * HIDDEN + column));
        factors[i] = bfloat16_to_float(
            __ldcg(i < CHOSEN ? weights + token * CHOSEN + i : gates + (i64)token * gates_stride));
    }
    if (HAS_SHARED)
        factors[EACH - 1] = sigmoid(factors[EACH - 1]);
    float4 sum = {bfloat16_to_float((u16)old.x), bfloat16_to_float((u16)(old.x >> 16)),
                  bfloat16_to_float((u16)old.y), bfloat16_to_float((u16)(old.y >> 16))};
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        sum.x = fmaf(factors[i], rows[i].x, sum.x);
        sum.y = fmaf(factors[i], rows[i].y, sum.y);
        sum.z = fmaf(factors[i], rows[i].z, sum.z);
        sum.w = fmaf(factors[i], rows[i].w, sum.w);
    }
    *at = {pack_bfloat16(sum.x, sum.y), pack_bfloat16(sum.z, sum.w)};
}
