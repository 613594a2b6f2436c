// y = x W^T, or that added to y, of up to four rows of words of 16-bit integers.
//
// A warp has some rows of the matrix, each lane whole groups of them: every 32nd. What is stored of
// some groups is asked for ahead, the first before the kernel ahead is done.

#define STEPS (COLUMNS / 1024)
#define GROUPS (COLUMNS / 32)
#define AHEAD (16 / ROWS < STEPS ? 16 / ROWS : STEPS)
#define X_WORDS (PARTS == 1 ? 19 : 16 + 2 * PARTS)

// A group of a row of x; of PARTS == 2 its halves have scales of their own.
struct GroupOfX {
    int words[16];
    float scales[PARTS], sum;

    __device__ __forceinline__ GroupOfX(const int *x, const float *squares, int group, float eps) {
        const int *from = x + group;
#pragma unroll
        for (int w = 0; w < 16; ++w)
            words[w] = __ldcg(from + w * GROUPS);
        sum = 0.0f;
        float by = 1.0f;
        if (PARTS > 1) {
            float square = 0.0f;
            const float *mine = squares + group / HEAD_GROUPS * (HEAD_GROUPS * PARTS);
#pragma unroll
            for (int i = 0; i < HEAD_GROUPS * PARTS / 4; ++i) {
                const float4 four = __ldcg((const float4 *)mine + i);
                square += four.x + four.y + (four.z + four.w);
            }
            by = inverse_root(square * (1.0f / (HEAD_GROUPS * 32)) + eps);
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            scales[part] = __int_as_float(__ldcg(from + (16 + part) * GROUPS)) * by;
            int total = __ldcg(from + (16 + PARTS + part) * GROUPS);
            if (PARTS == 1)
                total += __ldcg(from + 18 * GROUPS);
            sum = fmaf((float)total, scales[part], sum);
        }
    }
};

__device__ __forceinline__ float product(const Run<4> &run, const GroupOfX &x) {
    float value = 0.0f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        int total = 0, shifted = 0;
#pragma unroll
        for (int w = part * (4 / PARTS); w < (part + 1) * (4 / PARTS); ++w)
            run.add(w, x.words[4 * w], x.words[4 * w + 1], x.words[4 * w + 2], x.words[4 * w + 3],
                    total, shifted);
        value = fmaf((float)(total + (shifted >> 4)), x.scales[part], value);
    }
    return run.step() * value - run.least() * x.sum;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    words_product(const int *x, const float *squares, u16 *y, const char *codes,
                  const u16 *scales, const u32 *blocks, int num_rows, int y_stride, int eps_bits) {
    const int lane = threadIdx.x % 32;
    const int first = (blockIdx.x * WARPS + of_first_lane(threadIdx.x / 32)) * ROWS;
    if (first >= num_rows)
        return;
    const Place<COLUMNS> place(codes, scales, blocks, first, lane * 32);
    Run<4> runs[AHEAD][ROWS];
#pragma unroll
    for (int step = 0; step < AHEAD; ++step)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            runs[step][r].load(place, r, step * 1024);
    let_next_kernel_begin();
    wait_for_kernels_before();
    const int row = first + lane / (32 / ROWS);
    const bool stores = lane % (32 / ROWS) == 0;
    float old[TOKENS], sums[TOKENS][ROWS];
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        old[t] = ADDS && stores ? bfloat16_to_float(__ldcg(y + t * y_stride + row)) : 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            sums[t][r] = 0.0f;
    }
    const float eps = __int_as_float(eps_bits);
#pragma unroll 1
    for (int begin = 0; begin < STEPS; begin += AHEAD)
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead) {
            const int step = begin + ahead;
            if (STEPS % AHEAD && step >= STEPS)
                break;
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) {
                const GroupOfX mine(x + t * (X_WORDS * GROUPS), squares + t * (GROUPS * PARTS),
                                    step * 32 + lane, eps);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    sums[t][r] += product(runs[ahead][r], mine);
            }
            if (step + AHEAD < STEPS)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    runs[ahead][r].load(place, r, (step + AHEAD) * 1024);
        }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        const float sum = sum_of_lanes(sums[t]);
        if (stores)
            y[t * y_stride + row] = float_to_bfloat16(old[t] + sum);
    }
}
