// Chooses the experts of each token by its logits, and leaves its normalised row as moe_inner.cu
// takes it: a block of threads a token, of which the last warp chooses.
//
// A row's groups of 32 columns are whole numbers of 16 bits by a scale; first come the bytes of all
// groups, 32 upper and then 32 lower ones of each, signed both, of each eight of columns 0, 4, 1, 5,
// 2, 6, 3, 7; then float4 of each group: the scale, and what its halves add up to.

#define GROUPS (UNITS * 8)
#define TOKEN_BYTES (GROUPS * 80)
#define KEYS ((EXPERTS + 31) / 32)
#define OF_WARP ((UNITS + WARPS - 1) / WARPS)

// Two of x normalised, rounded, times two of the weight.
__device__ __forceinline__ u32 normal(u32 pair, u32 factors, float scale) {
    const u32 rounded = pack_bfloat16(bfloat16_to_float((u16)pair) * scale,
                                      __int_as_float(pair & 0xffff0000u) * scale);
    return pack_bfloat16(bfloat16_to_float((u16)rounded) * bfloat16_to_float((u16)factors),
                         __int_as_float(rounded & 0xffff0000u) *
                             __int_as_float(factors & 0xffff0000u));
}

// A warp's 256 columns, eight of each thread, as bytes.
__device__ __forceinline__ void stage(const float (&x)[8], int unit, char *row) {
    const int lane = threadIdx.x % 32, group = unit * 8 + lane / 4, eight = lane % 4;
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        most = larger(most, fabsf(x[i]));
    most = larger(most, of_lane_across(most, 1));
    most = larger(most, of_lane_across(most, 2));
    const float inverse = inverse_of(most), scale = scale_of(most);
    u32 upper[8], lower[8];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int number = (int)rintf(x[i] * inverse), high = upper_byte(number);
        upper[i] = (u32)high & 0xff;
        lower[i] = (u32)(number - high * 256) & 0xff;
        sum += (float)number;
    }
    char *at = row + group * 64 + eight * 8;
    *(uint2 *)at = make_uint2(upper[0] | upper[4] << 8 | upper[1] << 16 | upper[5] << 24,
                              upper[2] | upper[6] << 8 | upper[3] << 16 | upper[7] << 24);
    *(uint2 *)(at + 32) = make_uint2(lower[0] | lower[4] << 8 | lower[1] << 16 | lower[5] << 24,
                                     lower[2] | lower[6] << 8 | lower[3] << 16 | lower[7] << 24);
    sum = scale * (sum + of_lane_across(sum, 1));
    const float other = of_lane_across(sum, 2);
    if (eight == 0)
        *(float4 *)(row + GROUPS * 64 + group * 16) = {scale, sum, other, 0.0f};
}

// A logit of 16 bits as what orders as it does, and of equals the one of the lower number first.
__device__ __forceinline__ u32 key_of(u32 bits, int expert) {
    if (bits == 0x8000)
        bits = 0;
    return (bits ^ (bits & 0x8000 ? 0xffffu : 0x8000u)) << 16 | (u32)(0xffff - expert);
}

__device__ __forceinline__ float logit_of(u32 key) {
    const u32 bits = key >> 16;
    return bfloat16_to_float((u16)(bits ^ (bits & 0x8000 ? 0x8000u : 0xffffu)));
}

// One warp: the likeliest experts, and their shares.
__device__ __forceinline__ void choose(const u16 *logits, i64 *experts, u16 *weights, u64 *loads) {
    const int lane = threadIdx.x % 32;
    u32 keys[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const int expert = i * 32 + lane;
        keys[i] = expert < EXPERTS ? key_of(logits[expert], expert) : 0;
    }
    float largest = 0.0f, total = 0.0f, share = 0.0f;
    int mine = 0;
#pragma unroll
    for (int choice = 0; choice < CHOSEN; ++choice) {
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            most = max(most, keys[i]);
        most = most_of_warp(most);
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            keys[i] = keys[i] == most ? 0 : keys[i];
        if (choice == 0)
            largest = logit_of(most);
        const float each = exp2_of((logit_of(most) - largest) * LOG2_E);
        total += each;
        if (lane == choice) {
            mine = 0xffff - (int)(most & 0xffff);
            share = each;
        }
    }
    if (!NORM_WEIGHTS) {
        // The others too.
        float rest = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            rest += keys[i] ? exp2_of((logit_of(keys[i]) - largest) * LOG2_E) : 0.0f;
#pragma unroll
        for (int bits = 1; bits < 32; bits *= 2)
            rest += of_lane_across(rest, bits);
        total += rest;
    }
    if (lane < CHOSEN) {
        experts[lane] = mine;
        weights[lane] = float_to_bfloat16(share / total);
        count_up(loads + mine);
    }
}

extern "C" __global__ void __launch_bounds__((WARPS + 1) * 32)
    moe_stage(const u16 *x, const u16 *weight, const u16 *logits, char *image, i64 *experts,
              u16 *weights, u64 *loads, int x_stride, int logits_stride, int eps_bits) {
    float *squares = (float *)shared_memory();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x;
    uint4 factors[OF_WARP], v[OF_WARP];
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < OF_WARP; ++i)
        factors[i] =
            *(const uint4 *)(weight + min(warp + i * WARPS, UNITS - 1) * UNIT + lane * 8);
    wait_for_kernels_before();
    let_next_kernel_begin();
    if (warp == WARPS) {
        choose(logits + (i64)token * logits_stride, experts + token * CHOSEN,
               weights + token * CHOSEN, loads);
        __syncthreads();
        return;
    }
#pragma unroll
    for (int i = 0; i < OF_WARP; ++i)
        v[i] = *(const uint4 *)(x + (i64)token * x_stride +
                                min(warp + i * WARPS, UNITS - 1) * UNIT + lane * 8);
#pragma unroll
    for (int i = 0; i < OF_WARP; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (warp + i * WARPS < UNITS) {
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
    const float scale = inverse_root(total / (float)HIDDEN + __int_as_float(eps_bits));
#pragma unroll
    for (int i = 0; i < OF_WARP; ++i) {
        const int unit = warp + i * WARPS;
        if (unit >= UNITS)
            break;
        float values[8];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 pair = normal(word_of(v[i], k), word_of(factors[i], k), scale);
            values[k * 2] = bfloat16_to_float((u16)pair);
            values[k * 2 + 1] = __int_as_float(pair & 0xffff0000u);
        }
        stage(values, unit, image + (i64)token * TOKEN_BYTES);
    }
}
