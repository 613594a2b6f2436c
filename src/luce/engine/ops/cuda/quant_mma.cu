// Matrix of four-bit codes times up to TOKENS vectors, by mma.sync from registers.
//
// y[t, n] = sum_k x[t, k] W[n, k] (+ bias[n]) (+ residual[t, n]); W in the planes of
// luce.loaders.quant_formats, x and y bfloat16, sums in float32.
//
// Columns may be summed in any order, so a thread takes those that its words hold: word t of a
// group is what lane t of four multiplies, and no code ever moves between threads. A code q
// becomes the bfloat16 128 + q by bits alone; products of a group are summed exactly as such, and
// scale and offset of the group come in float32:
//     S (sum (128 + q) x  -  (128 + zero) sum x) + B sum x
// A matrix of ones gives sum x in the places where it is needed.
//
// A block makes 16 ROW_TILES rows; its WARPS share out the columns in runs of 256, and their sums
// are added in order. A row of x depends on no other one, and no sum on timing.

#define GROUPS 8 // of a run of columns
#define TOKENS (TOKEN_TILES * 8)
#define ROWS (ROW_TILES * 16)
#define LINE (ROWS + 4) // keeps the threads of a store off each other's banks

// Neighbouring codes 2i and 2i + 1 of a word as bfloat16 of 128 + q.
__device__ __forceinline__ u32 pair(u32 word, int i) {
    return ((word >> (4 * i)) & 0x000f000fu) | 0x43004300u;
}

__device__ __forceinline__ float byte_to_float(u32 word, int index) {
    return __int_as_float(__byte_perm(word, 0x4b000000, 0x7550 | index)) - 8388608.0f;
}

// What is stored of the scales of a row's run of groups.
struct Scales {
#if SCALE == SCALE_BYTE_OFFSET
    uint4 groups;
    u32 block;
#elif SCALE == SCALE_HALF_OFFSET
    uint4 low, high;
#else
    uint4 groups;
#endif
};

__device__ __forceinline__ u32 part(const uint4 &words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

__device__ __forceinline__ Scales load_scales(const char *scales, const u32 *blocks, i64 row,
                                              int run, int num_groups) {
    Scales found;
#if SCALE == SCALE_BYTE_OFFSET
    found.groups = __ldg((const uint4 *)(scales + (row * num_groups + run * GROUPS) * 2));
    found.block = __ldg(blocks + row * (num_groups / GROUPS) + run);
#elif SCALE == SCALE_HALF_OFFSET
    const uint4 *at = (const uint4 *)(scales + (row * num_groups + run * GROUPS) * 4);
    found.low = __ldg(at);
    found.high = __ldg(at + 1);
#else
    found.groups = __ldg((const uint4 *)(scales + (row * num_groups + run * GROUPS) * 2));
#endif
    return found;
}

// S, and B - S (128 + ZERO), of one group.
__device__ __forceinline__ float2 decode_scales(const Scales &found, int group) {
    float scale, offset = 0.0f;
#if SCALE == SCALE_BYTE_OFFSET
    u32 word = part(found.groups, group / 2);
    scale = half_to_float(found.block & 0xffff) * byte_to_float(word, group % 2 * 2);
    offset = -half_to_float(found.block >> 16) * byte_to_float(word, group % 2 * 2 + 1);
#elif SCALE == SCALE_HALF_OFFSET
    u32 word = group < 4 ? part(found.low, group) : part(found.high, group - 4);
    scale = half_to_float(word & 0xffff);
    offset = half_to_float(word >> 16);
#else
    u32 word = part(found.groups, group / 2);
    scale = half_to_float(group % 2 ? word >> 16 : word & 0xffff);
#endif
    return make_float2(scale, fmaf(scale, -(128.0f + ZERO), offset));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS)
    quant_mma(const u16 *x, u16 *y, const u16 *residual, const u16 *bias, const u32 *codes,
              const char *scales, const u32 *blocks, int num_tokens, int num_rows, int num_groups,
              int x_stride, int y_stride) {
    __shared__ float sums[WARPS][TOKENS][LINE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int quad = lane / 4, t = lane % 4;
    const int first_token = blockIdx.x * TOKENS, first_row = blockIdx.y * ROWS;
    const int num_runs = num_groups / GROUPS;

    i64 rows[ROW_TILES][2];
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            rows[tile][half] = min(first_row + tile * 16 + half * 8 + quad, num_rows - 1);
    const uint4 *lines[TOKEN_TILES];
    bool there[TOKEN_TILES];
#pragma unroll
    for (int tile = 0; tile < TOKEN_TILES; ++tile) {
        int token = first_token + tile * 8 + quad;
        there[tile] = token < num_tokens;
        lines[tile] = (const uint4 *)(x + (i64)min(token, num_tokens - 1) * x_stride) + t;
    }
    float total[ROW_TILES][TOKEN_TILES][4] = {};
    const u32 one = 0x3f803f80u;

#pragma unroll 1
    for (int run = warp; run < num_runs; run += WARPS) {
        u32 words[ROW_TILES][2][GROUPS];
        Scales stored[ROW_TILES][2];
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                i64 row = rows[tile][half];
                const u32 *line = codes + (row * num_groups + run * GROUPS) * 4 + t;
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
                    words[tile][half][group] = __ldg(line + group * 4);
                stored[tile][half] = load_scales(scales, blocks, row, run, num_groups);
            }
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            uint4 v[TOKEN_TILES];
            float sum_x[TOKEN_TILES][4];
#pragma unroll
            for (int tile = 0; tile < TOKEN_TILES; ++tile) {
                v[tile] = there[tile] ? __ldg(lines[tile] + (run * GROUPS + group) * 4)
                                      : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum_x[tile][i] = 0.0f;
                multiply(sum_x[tile], one, one, one, one, v[tile].x, v[tile].y);
                multiply(sum_x[tile], one, one, one, one, v[tile].z, v[tile].w);
            }
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
                u32 up = words[tile][0][group], down = words[tile][1][group];
                float2 above = decode_scales(stored[tile][0], group);
                float2 below = decode_scales(stored[tile][1], group);
                u32 a[8] = {pair(up, 0), pair(down, 0), pair(up, 1), pair(down, 1),
                            pair(up, 2), pair(down, 2), pair(up, 3), pair(down, 3)};
#pragma unroll
                for (int token = 0; token < TOKEN_TILES; ++token) {
                    float c[4] = {};
                    multiply(c, a[0], a[1], a[2], a[3], v[token].x, v[token].y);
                    multiply(c, a[4], a[5], a[6], a[7], v[token].z, v[token].w);
                    float *into = total[tile][token];
                    into[0] = fmaf(above.x, c[0], fmaf(above.y, sum_x[token][0], into[0]));
                    into[1] = fmaf(above.x, c[1], fmaf(above.y, sum_x[token][1], into[1]));
                    into[2] = fmaf(below.x, c[2], fmaf(below.y, sum_x[token][0], into[2]));
                    into[3] = fmaf(below.x, c[3], fmaf(below.y, sum_x[token][1], into[3]));
                }
            }
        }
    }
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int token = 0; token < TOKEN_TILES; ++token) {
            float(*at)[LINE] = &sums[warp][token * 8 + 2 * t];
            int row = tile * 16 + quad;
            at[0][row] = total[tile][token][0];
            at[1][row] = total[tile][token][1];
            at[0][row + 8] = total[tile][token][2];
            at[1][row + 8] = total[tile][token][3];
        }
    __syncthreads();
    for (int index = threadIdx.x; index < TOKENS * ROWS; index += WARPS * 32) {
        int token = first_token + index / ROWS, row = first_row + index % ROWS;
        if (token >= num_tokens || row >= num_rows)
            continue;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
            sum += sums[w][index / ROWS][index % ROWS];
#if HAS_BIAS
        sum += bfloat16_to_float(bias[row]);
#endif
#if HAS_RESIDUAL
        sum += bfloat16_to_float(residual[(i64)token * y_stride + row]);
#endif
        y[(i64)token * y_stride + row] = float_to_bfloat16(sum);
    }
}
