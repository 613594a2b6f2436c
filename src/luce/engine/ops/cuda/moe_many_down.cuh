// Down of what gate and up left.
//
// A unit is some rows, all columns, for up to four of an expert's tokens. One warp has it: a lane
// one group of every `ratio` rows.

struct Down {
    static const int width = SIZE, groups = SIZE / 32, ratio = 32 / groups;
    static const int passes = groups < 16 ? groups : 16, rows = passes * ratio, halves = 1;
    static const int units = HIDDEN / rows, expert_rows = HIDDEN, half_rows = 0;
    static const int x_bytes = 72 * groups;

    struct Weights {
        Group of[passes];

        __device__ __forceinline__ void load(const char *slot) {
            const char *scales = slot + rows * (SIZE / 2), *blocks = scales + rows * (SIZE / 16);
#pragma unroll
            for (int i = 0; i < passes; ++i) {
                const int group = i * 32 + threadIdx.x % 32;
                of[i].load(slot + group * 16, scales + group * 2, blocks + group / 8 * 4);
            }
        }
    };

    __device__ __forceinline__ static void leave(const Weights &weights, const char *x,
                                                 float *results) {
        const int lane = threadIdx.x % 32;
        const Inputs inputs(x, groups, lane % groups);
        float sums[passes];
#pragma unroll
        for (int i = 0; i < passes; ++i)
            sums[i] = weights.of[i].times(inputs, 0.0f);
        const float sum = sum_of_lanes<passes, groups>(sums);
        const int pass = lane % groups / (groups / passes);
        if (lane % (groups / passes) == 0)
            results[pass * ratio + lane / groups] = sum;
    }

    // A group of a row.
    __device__ __forceinline__ static void quantise(const float *row, char *x, int group) {
        float columns[32], largest = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float4 four = __ldcg((const float4 *)row + group * 8 + i);
            columns[4 * i] = four.x;
            columns[4 * i + 1] = four.y;
            columns[4 * i + 2] = four.z;
            columns[4 * i + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < 32; ++i)
            largest = fmaxf(fabsf(columns[i]), largest);
        const float inverse = inverse_of(largest);
        int total = 0;
#pragma unroll
        for (int eight = 0; eight < 4; ++eight)
            *(uint4 *)(x + (eight * groups + group) * 16) =
                words_of(columns + eight * 8, inverse, total);
        *(float2 *)(x + 64 * groups + group * 8) = {scale_of(largest), (float)total};
    }
};
