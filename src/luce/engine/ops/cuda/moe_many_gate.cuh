// Gate and up of rows that are words of 16-bit integers: silu(gate x) * up x.
//
// A unit is some rows of the gate and as many of up, all columns, for up to four of an expert's
// tokens. One warp has it: a lane whole groups, unpacked as they meet each token.

struct GateAndUp {
    static const int width = HIDDEN, groups = HIDDEN / 32, each = groups / 32;
    static const int rows = 8 / each, halves = 2, units = SIZE / rows;
    static const int expert_rows = 2 * SIZE, half_rows = SIZE, x_bytes = 72 * groups;

    struct Weights {
        Group of[2 * rows][each];

        __device__ __forceinline__ void load(const char *slot) {
            const char *scales = slot + 2 * rows * (HIDDEN / 2);
            const char *blocks = scales + 2 * rows * (HIDDEN / 16);
#pragma unroll
            for (int i = 0; i < 2 * rows; ++i)
#pragma unroll
                for (int o = 0; o < each; ++o) {
                    const int group = i * groups + o * 32 + threadIdx.x % 32;
                    of[i][o].load(slot + group * 16, scales + group * 2, blocks + group / 8 * 4);
                }
        }
    };

    // Each lane's sum is that of the gate's or up's row that `sum_of_lanes` gives it.
    __device__ __forceinline__ static void leave(const Weights &weights, const char *x,
                                                 float *results) {
        const int lane = threadIdx.x % 32;
        float sums[2 * rows];
#pragma unroll
        for (int i = 0; i < 2 * rows; ++i)
            sums[i] = 0.0f;
#pragma unroll
        for (int o = 0; o < each; ++o) {
            const Inputs inputs(x, groups, o * 32 + lane);
#pragma unroll
            for (int i = 0; i < 2 * rows; ++i)
                sums[i] = weights.of[i][o].times(inputs, sums[i]);
        }
        const float gate = sum_of_lanes<2 * rows, 32>(sums), up = of_lane_across(gate, 16);
        if (lane < 16 && lane % (16 / rows) == 0)
            results[lane / (16 / rows)] = gate * sigmoid(gate) * up;
    }
};
