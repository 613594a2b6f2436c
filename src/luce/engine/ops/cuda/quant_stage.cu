// x as quant_staged_rows.cuh has it: each warp a token's 256 columns, each thread eight of them.

__device__ __forceinline__ void stage(const uint4 &v, int token, char *unit) {
    const int lane = threadIdx.x % 32, group = lane / 4, eight = lane % 4;
    u32 most = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        most = larger_of_each(most, word_of(v, k) & 0x7fff7fffu);
    most = most_of_warp(max(most >> 16, most & 0xffff));
    const int exponent = max((int)(most >> 7), 10);
    const float factor = __int_as_float((263 - exponent) << 23);
    u32 words[4];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const u32 pair = word_of(v, k);
        const float low = bfloat16_to_float((u16)pair) * factor;
        const float high = __int_as_float(pair & 0xffff0000u) * factor;
        sum += low + high;
        words[k] = pack_half(low, high);
    }
    const int tile = (group / 4 * 4 + eight) * TOKEN_TILES + token / 8;
    *(uint4 *)(unit + tile * X_TILE + (token % 8 * 4 + group % 4) * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
    if (lane == 0)
        *(float *)(unit + BACK_AT + token * 4) = __int_as_float((exponent - 9) << 23);
    sum += of_lane_across(sum, 1);
    sum += of_lane_across(sum, 2);
    const float high = half_to_float(pack_half(sum, sum) & 0xffff);
    if (eight == 0)
        *(u32 *)(unit + SUMS_AT + ((token / 8 * GROUPS + group) * 8 + token % 8) * 4) =
            pack_half(high, sum - high);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    quant_stage(const u16 *x, char *rows, int num_tokens, int num_units, int x_stride) {
    let_next_kernel_begin();
    wait_for_kernels_before();
    const int task = blockIdx.x * WARPS + threadIdx.x / 32;
    if (task >= num_tokens * num_units)
        return;
    const int token = task / num_units, unit = task % num_units;
    const uint4 v = *(const uint4 *)(x + (i64)token * x_stride + unit * UNIT +
                                     threadIdx.x % 32 * 8);
    stage(v, token, rows + (i64)unit * X_UNIT);
}

// Two of them normalised, rounded, times two of the weight.
__device__ __forceinline__ u32 normal(u32 pair, u32 factors, float scale) {
    const u32 rounded = pack_bfloat16(bfloat16_to_float((u16)pair) * scale,
                                      __int_as_float(pair & 0xffff0000u) * scale);
    return pack_bfloat16(bfloat16_to_float((u16)rounded) * bfloat16_to_float((u16)factors),
                         __int_as_float(rounded & 0xffff0000u) *
                             __int_as_float(factors & 0xffff0000u));
}

// The same of x normalised: each block of threads a token.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    quant_stage_norm(const u16 *x, const u16 *weight, char *rows, int num_units, int x_stride,
                     int eps_bits) {
    float *squares = (float *)shared_memory();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x;
    uint4 factors[UNITS], v[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const int unit = min(warp + i * WARPS, num_units - 1);
        factors[i] = *(const uint4 *)(weight + unit * UNIT + lane * 8);
    }
    let_next_kernel_begin();
    wait_for_kernels_before();
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const int unit = min(warp + i * WARPS, num_units - 1);
        v[i] = *(const uint4 *)(x + (i64)token * x_stride + unit * UNIT + lane * 8);
    }
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (warp + i * WARPS < num_units) {
                const u32 pair = word_of(v[i], k);
                const float low = bfloat16_to_float((u16)pair);
                const float high = __int_as_float(pair & 0xffff0000u);
                square += low * low + high * high;
            }
#pragma unroll
    for (int bits = 1; bits < 32; bits *= 2)
        square += of_lane_across(square, bits);
    if (lane == 0)
        squares[warp] = square;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i)
        total += squares[i];
    const float scale = inverse_root(total / (float)(num_units * UNIT) + __int_as_float(eps_bits));
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const int unit = warp + i * WARPS;
        if (unit >= num_units)
            break;
        stage(make_uint4(normal(v[i].x, factors[i].x, scale), normal(v[i].y, factors[i].y, scale),
                         normal(v[i].z, factors[i].z, scale), normal(v[i].w, factors[i].w, scale)),
              token, rows + (i64)unit * X_UNIT);
    }
}
