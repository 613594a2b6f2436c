// Rows of Q4_K codes times a few rows of x that are words: of groups of 32 columns, or, with
// HEAD_GROUPS, of `PartWords`, two parts a group, to be divided by their heads' root mean squares.
// Sums are added to what is there.
//
// A thread has one group of columns of ROWS rows; GROUPS threads have ROWS whole rows. The order of a
// sum is the same for one row of x as for several.

#define THREADS (GROUPS * SETS)
#define WORDS (HEAD_GROUPS ? 20 : 19)
#define WARPS_OF_ROW (GROUPS / 32)
#define LOW_NIBBLES 0x0f0f0f0f
#define HIGH_NIBBLES 0xf0f0f0f0

// Sixteen columns: low nibbles and high ones, which are left where they are, and their sum is shifted.
__device__ __forceinline__ float product_of_part(const int *x, u32 a, u32 b) {
    int low = dot_two<0>(x[0], a & LOW_NIBBLES, 0), high = dot_two<0>(x[2], a & HIGH_NIBBLES, 0);
    low = dot_two<1>(x[1], a & LOW_NIBBLES, low);
    high = dot_two<1>(x[3], a & HIGH_NIBBLES, high);
    low = dot_two<0>(x[4], b & LOW_NIBBLES, low);
    high = dot_two<0>(x[6], b & HIGH_NIBBLES, high);
    low = dot_two<1>(x[5], b & LOW_NIBBLES, low);
    high = dot_two<1>(x[7], b & HIGH_NIBBLES, high);
    return (float)(low + (high >> 4));
}

// A group of ROWS rows.
struct Weights {
    uint4 codes[ROWS];
    float scale[ROWS], offset[ROWS];

    __device__ __forceinline__ Weights(const char *all, const u16 *scales, const u32 *blocks, int first,
                                       int group) {
        u32 pair[ROWS], block[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            codes[i] = load_vector(all + ((i64)(first + i) * GROUPS + group) * 16);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            pair[i] = scales[(i64)(first + i) * GROUPS + group];
            block[i] = blocks[(i64)(first + i) * (GROUPS / 8) + group / 8];
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            scale[i] = half_to_float(block[i] & 0xffff) * (float)(pair[i] & 255);
            offset[i] = half_to_float(block[i] >> 16) * (float)(pair[i] >> 8);
        }
    }
};

// A group of a row of x.
struct Group {
    int words[16];
    float scales[2], sum; // of its parts, with the head's; of all numbers

    __device__ __forceinline__ Group(const int *row, const float *squares, int group, float eps) {
        int rest[WORDS - 16];
#pragma unroll
        for (int i = 0; i < 16; ++i)
            words[i] = row[i * GROUPS + group];
#pragma unroll
        for (int i = 0; i < WORDS - 16; ++i)
            rest[i] = row[(16 + i) * GROUPS + group];
#if HEAD_GROUPS
        const float4 *of_head = (const float4 *)(squares + group / HEAD_GROUPS * (2 * HEAD_GROUPS));
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_GROUPS / 2; ++i) {
            const float4 v = of_head[i];
            square += (v.x + v.y) + (v.z + v.w);
        }
        const float inverse = inverse_root(square * (1.0f / (HEAD_GROUPS * 32)) + eps);
        scales[0] = __int_as_float(rest[0]) * inverse;
        scales[1] = __int_as_float(rest[1]) * inverse;
        sum = (float)rest[2] * scales[0] + (float)rest[3] * scales[1];
#else
        scales[0] = scales[1] = __int_as_float(rest[0]);
        sum = (float)(rest[1] + rest[2]) * scales[0];
#endif
    }
};

// A warp's sums of ROWS numbers; every 32 / ROWS lanes have one.
__device__ __forceinline__ float sum_by_halves(float (&sums)[ROWS]) {
    int bit = 16;
#pragma unroll
    for (int count = ROWS / 2; count > 0; count /= 2, bit /= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float kept = upper ? sums[i + count] : sums[i];
            const float given = upper ? sums[i] : sums[i + count];
            sums[i] = kept + of_lane_across(given, bit);
        }
    }
#pragma unroll
    for (; bit > 0; bit /= 2)
        sums[0] += of_lane_across(sums[0], bit);
    return sums[0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    words_product(const int *words, const float *squares, u16 *out, const char *codes,
                  const u16 *scales, const u32 *blocks, int eps_bits, int tokens, int out_stride) {
    float(*found)[WARPS_OF_ROW][ROWS] = (float(*)[WARPS_OF_ROW][ROWS])shared_memory();
    const int t = threadIdx.x, group = t % GROUPS, set = t / GROUPS, lane = t % 32;
    const int first = blockIdx.x * (ROWS * SETS);
    const Weights weights(codes, scales, blocks, first + set * ROWS, group);
    let_next_kernel_begin();
    wait_for_kernels_before();
    const float eps = __int_as_float(eps_bits);
    for (int token = 0; token < tokens; ++token) {
        const Group x(words + token * (WORDS * GROUPS), squares + token * (2 * GROUPS), group, eps);
        u16 *to = out + (i64)token * out_stride + first + t;
        const float old = t < ROWS * SETS ? bfloat16_to_float(*to) : 0.0f;
        float sums[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float one = product_of_part(x.words, weights.codes[i].x, weights.codes[i].y);
            const float two = product_of_part(x.words + 8, weights.codes[i].z, weights.codes[i].w);
            sums[i] = weights.scale[i] * (one * x.scales[0] + two * x.scales[1]) -
                      weights.offset[i] * x.sum;
        }
        const float sum = sum_by_halves(sums);
        if (lane % (32 / ROWS) == 0)
            found[set][t / 32 % WARPS_OF_ROW][lane / (32 / ROWS)] = sum;
        __syncthreads();
        if (t < ROWS * SETS) {
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS_OF_ROW; ++i)
                total += found[t / ROWS][i][t % ROWS];
            *to = float_to_bfloat16(old + total);
        }
        __syncthreads();
    }
}
