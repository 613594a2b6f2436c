// How blocks of threads share out the units of a matrix, and how a row block's sums come together
// and are written.

// Which units a block of threads takes, and which one takes a unit.
struct Shares {
    u32 units, blocks;
    __device__ __forceinline__ int begin(int block) const { return block * units / blocks; }
    __device__ __forceinline__ int owner(int unit) const {
        return ((unit + 1) * blocks - 1) / units;
    }
};

__device__ __forceinline__ void clear(Totals &total) {
#pragma unroll
    for (int i = 0; i < PARTS * 4; ++i)
        total[i / 4 / TOKEN_TILES][i / 4 % TOKEN_TILES][i % 4] = 0.0f;
}

// The sums of a row block that several blocks of threads have parts of: true, and the whole sums,
// for the last of them to come.
__device__ __forceinline__ bool gather(const Problem &p, const Shares &shares, int row_block,
                                       int *flag, Totals &total) {
    const int begin = row_block * p.num_spans;
    const int first = shares.owner(begin), last = shares.owner(begin + p.num_spans - 1);
    if (first == last)
        return true;
    // A block of threads has at most two parts: of its first row block, and of its last one. Only
    // the first with a part of this row block can have begun with another one.
    const i64 size = PARTS * WORKERS;
    float4 *line = p.partials + 2 * size * first + threadIdx.x;
    float4 *of_first = line + (shares.begin(first) < begin ? size : 0);
    float4 *mine = (int)blockIdx.x == first ? of_first : line + 2 * size * (blockIdx.x - first);
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const float(&sum)[4] = total[i / TOKEN_TILES][i % TOKEN_TILES];
        mine[i * WORKERS] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    wait_at<1, WORKERS>();
    if (threadIdx.x == 0) {
        __threadfence();
        *flag = atomicAdd(p.arrived + row_block, 1) == last - first;
        __threadfence();
    }
    wait_at<1, WORKERS>();
    if (!*flag)
        return false;
    if (threadIdx.x == 0)
        p.arrived[row_block] = 0;
    clear(total);
    // Several parts are read at once: a round trip takes longer than their sums.
    const int at_once = PARTS < 16 ? 16 / PARTS : 1;
#pragma unroll at_once
    for (int block = 0; block <= last - first; ++block) {
        const float4 *part = block ? line + 2 * size * block : of_first;
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            const float4 sum = __ldcg(part + i * WORKERS);
            float(&into)[4] = total[i / TOKEN_TILES][i % TOKEN_TILES];
            into[0] += sum.x;
            into[1] += sum.y;
            into[2] += sum.z;
            into[3] += sum.w;
        }
    }
    return true;
}

// What is there of a bias and a residual comes at once, and without branches: loads one after the
// other would each be waited for.
__device__ __forceinline__ void store(const Problem &p, const Place &at, int first_row,
                                      const Totals &total) {
    const int last_row = p.num_rows - 1, last_token = p.num_tokens - 1;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) {
        const int row = first_row + at.row + tile * 16;
        const int rows[2] = {min(row, last_row), min(row + 8, last_row)};
        const int token = at.t * 2;
        float bias[2] = {0.0f, 0.0f};
        if (p.has_bias) {
            bias[0] = bfloat16_to_float(p.bias[rows[0]]);
            bias[1] = bfloat16_to_float(p.bias[rows[1]]);
        }
        u16 old[TOKEN_TILES * 4];
#pragma unroll
        for (int i = 0; i < TOKEN_TILES * 4; ++i) {
            const int from = min(token + i / 4 * 8 + i % 2, last_token);
            old[i] = 0;
            if (p.has_residual)
                old[i] = p.residual[(i64)from * p.y_stride + rows[i % 4 / 2]];
        }
#pragma unroll
        for (int i = 0; i < TOKEN_TILES * 4; ++i) {
            const int to = token + i / 4 * 8 + i % 2, half = i % 4 / 2;
            const float sum = total[tile][i / 4][i % 4] + bias[half] + bfloat16_to_float(old[i]);
            if (row + half * 8 <= last_row && to <= last_token)
                p.y[(i64)to * p.y_stride + row + half * 8] = float_to_bfloat16(sum);
        }
    }
}
