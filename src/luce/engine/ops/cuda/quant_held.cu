// Matrix of quantised rows times up to TOKENS vectors, which lie in registers all the time.
//
// y[t, n] = sum_k x[t, k] W[n, k] (+ bias[n]) (+ residual[t, n]); W in the planes of
// luce.loaders.quant_formats, x as quant_staged_rows.cuh has it, y bfloat16, sums in float32.
//
// Columns are split among a block's warps: each has 256 of them, of which it holds x for good. Rows
// come in tiles of eight, TILES for each of ROW_GROUPS sets of warps, through a ring of shared
// memory, by bulk copies that one thread begins, before the kernel ahead is done. The warps leave
// their sums in shared memory, where DEPTH other warps take turns to add them up, in order: so that
// of a sum depends on the matrix alone. Warps that multiply have the registers that others give away.
//
// Products are the transposed ones of quant_split.cu: x has the tokens' rows, weights the columns,
// so that a thread has one row of the matrix, two groups of 32 of its columns, and their scales.

#define HAS_MINIMA (SCALE == SCALE_BYTE_OFFSET)
#define TILE_SETS (ROW_GROUPS * TILES)
#define STAGE_ROWS (TILE_SETS * 8)
#define CODE_LINE (UNITS * 128)
#define CODE_PITCH (CODE_PARTS * CODE_LINE + 16)
#define HIGH_LINE (UNITS * 32)
#define HIGH_PITCH (HIGH_PARTS * HIGH_LINE + (HIGH_PARTS * UNITS % 2 ? 0 : 32))
#define SCALE_LINE (UNITS * GROUPS * GROUP_SCALE_BYTES)
#define SCALE_PITCH (SCALE_LINE + (SCALE_LINE / 16 % 2 ? 0 : 16))
#define HIGH_AT (STAGE_ROWS * CODE_PITCH)
#define SCALES_AT (HIGH_AT + (HIGH_PARTS ? STAGE_ROWS * HIGH_PITCH : 0))
#define BLOCKS_AT (SCALES_AT + STAGE_ROWS * SCALE_PITCH)
#define STAGE_BYTES ((BLOCKS_AT + STAGE_ROWS * UNITS * BLOCK_BYTES + 127) / 128 * 128)
#define SLOT (TOKENS * 8)
#define WARPS (UNITS * ROW_GROUPS)
#define MULTIPLIERS ((WARPS + 3) / 4 * 4)
#define THREADS_OF_X (WARPS * 32)
#define THREADS ((MULTIPLIERS + 4) * 32)

struct Problem {
    const char *x;
    u16 *y;
    const u16 *residual, *bias;
    const char *codes, *high, *scales, *blocks;
    int num_tokens, num_rows, y_stride, has_bias, has_residual;
};

// Shared memory: the ring, sums that warps leave, what belongs to x, barriers.
struct Room {
    char *ring;
    float *slots;
    u32 *x_sums;
    float *back; // of a warp's x, of each token
    u64 *full, *emptied, *summed, *freed;

    __device__ __forceinline__ explicit Room(char *shared)
        : ring(shared), slots((float *)(shared + STAGES * STAGE_BYTES)),
          x_sums((u32 *)(slots + DEPTH * TILES * WARPS * SLOT)),
          back((float *)(x_sums + THREADS_OF_X * 2 * TOKEN_TILES)),
          full((u64 *)(back + WARPS * TOKENS)),
          emptied(full + STAGES), summed(emptied + STAGES), freed(summed + DEPTH) {}

    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                init_barrier(full + i, 1);
                init_barrier(emptied + i, 1);
            }
            for (int i = 0; i < DEPTH; ++i) {
                init_barrier(summed + i, WARPS);
                init_barrier(freed + i, 1);
            }
            show_barriers();
        }
        __syncthreads();
    }
};

// What a block of threads has of the matrix.
struct Share {
    int first, count; // of STAGE_ROWS rows each

    __device__ __forceinline__ explicit Share(const Problem &p) {
        const int all = (p.num_rows + STAGE_ROWS - 1) / STAGE_ROWS;
        first = (int)((i64)blockIdx.x * all / gridDim.x);
        count = (int)((i64)(blockIdx.x + 1) * all / gridDim.x) - first;
    }
};

// Begin to copy the rows of a stage: one thread.
__device__ __forceinline__ void fill(const Problem &p, const Share &share, const Room &room,
                                     u32 index) {
    const int first_row = (share.first + index) * STAGE_ROWS;
    const int rows = min(STAGE_ROWS, p.num_rows - first_row);
    const int block_bytes = rows * (UNITS * BLOCK_BYTES);
    char *stage = room.ring + index % STAGES * STAGE_BYTES;
    u64 *barrier = room.full + index % STAGES;
    expect_bytes(barrier, rows * (CODE_PARTS * CODE_LINE + HIGH_PARTS * HIGH_LINE + SCALE_LINE) +
                              block_bytes);
    const char *codes = p.codes + (i64)first_row * CODE_PARTS * CODE_LINE;
    const char *high = p.high + (i64)first_row * HIGH_PARTS * HIGH_LINE;
    const char *scales = p.scales + (i64)first_row * SCALE_LINE;
    if (BLOCK_BYTES)
        copy_bulk(stage + BLOCKS_AT, p.blocks + (i64)first_row * (UNITS * BLOCK_BYTES),
                  block_bytes, barrier);
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll
        for (int part = 0; part < CODE_PARTS; ++part) {
            copy_bulk(stage + row * CODE_PITCH + part * CODE_LINE, codes, CODE_LINE, barrier);
            codes += CODE_LINE;
        }
#pragma unroll
        for (int part = 0; part < HIGH_PARTS; ++part) {
            copy_bulk(stage + HIGH_AT + row * HIGH_PITCH + part * HIGH_LINE, high, HIGH_LINE,
                      barrier);
            high += HIGH_LINE;
        }
        copy_bulk(stage + SCALES_AT + row * SCALE_PITCH, scales, SCALE_LINE, barrier);
        scales += SCALE_LINE;
    }
}

__device__ __forceinline__ void fill_all(const Problem &p, const Share &share, const Room &room) {
#pragma unroll 1
    for (u32 index = 0; index < (u32)share.count; ++index) {
        if (index >= STAGES)
            wait_for(room.emptied + index % STAGES, (index / STAGES + 1) % 2);
        fill(p, share, room, index);
    }
}

// x of a warp's columns as its products take it: a thread has two groups of 32 of two tokens. Their
// sums, and what a token's sums are to be multiplied by, go to shared memory.
struct Held {
    uint4 x[2][4][TOKEN_TILES];

    __device__ __forceinline__ void load(const char *unit, const Room &room) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, t = lane % 4;
        u32 *sums = room.x_sums + threadIdx.x * 2 * TOKEN_TILES;
        // Both groups, which are neighbours, at once: one alone would read half of each sector.
#pragma unroll
        for (int i = 0; i < 4 * TOKEN_TILES * 2; ++i) {
            const int j = i % 2, tile = i / 2 % TOKEN_TILES, eight = i / 2 / TOKEN_TILES;
            const int group = t * 2 + j;
            const int at = ((group / 4 * 4 + eight) * TOKEN_TILES + tile) * X_TILE;
            uint4 v = *(const uint4 *)(unit + at + (quad * 4 + group % 4) * 16);
            if (X_HAS_SIXTEENTHS) {
                v.y = multiply_half(v.y, SIXTEENTH);
                v.w = multiply_half(v.w, SIXTEENTH);
            }
            x[j][eight][tile] = v;
        }
#pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; ++tile) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                sums[j * TOKEN_TILES + tile] = *(
                    const u32 *)(unit + SUMS_AT + ((tile * GROUPS + t * 2 + j) * 8 + quad) * 4);
            if (t == 0)
                room.back[warp * TOKENS + tile * 8 + quad] =
                    *(const float *)(unit + BACK_AT + (tile * 8 + quad) * 4);
        }
    }
};

// c += A B, A's lower rows zero if there are eight tokens.
__device__ __forceinline__ void add_product(float (&c)[4], const u32 (&up)[2],
                                            const u32 (&down)[2], u32 b0, u32 b1) {
    multiply_halves(c, up[0], TOKEN_TILES > 1 ? down[0] : 0, up[1], TOKEN_TILES > 1 ? down[1] : 0,
                    b0, b1);
}

// A group's codes and what belongs to them.
struct Codes {
    uint4 low[CODE_PARTS];
    u32 high[HIGH_PARTS + 1];

    __device__ __forceinline__ Codes(const char *stage, int row, int unit, int group) {
#pragma unroll
        for (int part = 0; part < CODE_PARTS; ++part)
            low[part] = *(const uint4 *)(stage + row * CODE_PITCH + part * CODE_LINE + unit * 128 +
                                         group * 16);
#pragma unroll
        for (int part = 0; part < HIGH_PARTS; ++part)
            high[part] = *(const u32 *)(stage + HIGH_AT + row * HIGH_PITCH + part * HIGH_LINE +
                                        unit * 32 + group * 4);
    }
    // Eight columns' weights.
    __device__ __forceinline__ void weights(const Constants &one, const GroupScale &scale,
                                            int eight, u32 (&pairs)[4]) const {
        const u32 word = word_of(low[0], eight);
        if (CODES == 8)
            from_bytes(one, scale, word ^ 0x80808080u,
                       word_of(low[CODE_PARTS - 1], eight) ^ 0x80808080u, eight, pairs);
        else if (TABLE)
            from_table(one, scale, word, eight, pairs);
        else
            from_nibbles(one, scale, word, high, eight, pairs);
    }
};

// The sums of a warp's columns: of token quad, and of that eight later, rows 2t and 2t + 1.
__device__ __forceinline__ void multiply_unit(const Constants &one, const Held &held,
                                              const u32 *x_sums, const char *stage,
                                              int first_row, int unit, float (&sums)[4]) {
    const int quad = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = first_row + quad;
    u32 words[2], minima[2];
    const char *scales = stage + SCALES_AT + row * SCALE_PITCH +
                         (unit * GROUPS + t * 2) * GROUP_SCALE_BYTES;
    if (GROUP_SCALE_BYTES == 4) {
        const uint2 both = *(const uint2 *)scales;
        words[0] = both.x;
        words[1] = both.y;
    } else {
        words[0] = *(const u32 *)scales;
        words[1] = words[0] >> 16;
    }
    float products[4] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const Codes codes(stage, row, unit, t * 2 + j);
        const GroupScale scale(one, words[j]);
#pragma unroll
        for (int eight = 0; eight < 4; ++eight) {
            const uint4 &up = held.x[j][eight][0], &down = held.x[j][eight][TOKEN_TILES - 1];
            u32 pairs[4];
            codes.weights(one, scale, eight, pairs);
            add_product(products, {up.x, up.y}, {down.x, down.y}, pairs[0], pairs[1]);
            add_product(products, {up.z, up.w}, {down.z, down.w}, pairs[2], pairs[3]);
        }
        if (HAS_MINIMA)
            minima[j] = scale.minimum;
    }
    float c[4] = {};
    if (HAS_MINIMA && TOKEN_TILES == 2) {
        const uint4 v = *(const uint4 *)x_sums;
        add_product(c, {v.x, v.z}, {v.y, v.w}, minima[0], minima[1]);
    } else if (HAS_MINIMA) {
        const uint2 v = *(const uint2 *)x_sums;
        add_product(c, {v.x, v.y}, {v.x, v.y}, minima[0], minima[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const char *at = stage + BLOCKS_AT +
                         ((first_row + t * 2 + i % 2) * UNITS + unit) * BLOCK_BYTES;
        u32 block = 0;
        if (BLOCK_BYTES)
            block = BLOCK_BYTES == 4 ? *(const u32 *)at : *(const u16 *)at;
        float value = products[i];
        if (BLOCK_BYTES)
            value *= half_to_float(block & 0xffff);
        if (HAS_MINIMA)
            value = fmaf(-half_to_float(block >> 16), c[i], value);
        sums[i] = value;
    }
}

__device__ __forceinline__ void store(const Problem &p, int first_row, const float4 &sums) {
    const int token = threadIdx.x % 32 / 2, row = first_row + threadIdx.x % 2 * 4;
    if (token >= p.num_tokens || row >= p.num_rows)
        return;
    const i64 at = (i64)token * p.y_stride + row;
    float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (p.has_bias)
            values[k] += bfloat16_to_float(p.bias[row + k]);
        if (p.has_residual)
            values[k] += bfloat16_to_float(p.residual[at + k]);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k)
        p.y[at + k] = float_to_bfloat16(values[k]);
}

__device__ __forceinline__ void add(float4 &sum, const float4 &part, float factor) {
    sum.x = fmaf(part.x, factor, sum.x);
    sum.y = fmaf(part.y, factor, sum.y);
    sum.z = fmaf(part.z, factor, sum.z);
    sum.w = fmaf(part.w, factor, sum.w);
}

// The sums of a tile of a stage, which all warps have left.
__device__ __forceinline__ void add_up(const Problem &p, const Share &share, const Room &room,
                                       const float *slots, int index, int tile) {
    const int lane = threadIdx.x % 32;
    if (lane >= SLOT / 4)
        return;
#pragma unroll
    for (int group = 0; group < ROW_GROUPS; ++group) {
        const float4 *parts = (const float4 *)(slots + group * UNITS * SLOT) + lane;
        const float *back = room.back + group * UNITS * TOKENS + lane / 2;
        const int set = group * TILES + tile;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 5
        for (int unit = 0; unit < UNITS; ++unit)
            add(sum, parts[unit * (SLOT / 4)], back[unit * TOKENS]);
        store(p, (share.first + index) * STAGE_ROWS + set * 8, sum);
    }
}

__device__ __forceinline__ void add_all(const Problem &p, const Share &share, const Room &room,
                                        int adder) {
#pragma unroll 1
    for (u32 index = adder; index < (u32)share.count; index += DEPTH) {
        wait_for(room.summed + adder, index / DEPTH % 2);
        const bool is_first = threadIdx.x % 32 == 0;
        if (is_first)
            arrive(room.emptied + index % STAGES);
#pragma unroll 1
        for (int tile = 0; tile < TILES; ++tile)
            add_up(p, share, room, room.slots + (adder * TILES + tile) * (WARPS * SLOT), index,
                   tile);
        __syncwarp();
        if (is_first)
            arrive(room.freed + adder);
    }
}

__device__ __forceinline__ void leave(float *slot, const float (&sums)[4]) {
    *(float2 *)slot = make_float2(sums[0], sums[1]);
    if (TOKEN_TILES > 1)
        *(float2 *)(slot + SLOT / 2) = make_float2(sums[2], sums[3]);
}

__device__ __forceinline__ void multiply_all(const Problem &p, const Share &share,
                                             const Room &room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = warp % UNITS;
    const Constants one(p.num_tokens);
    Held held;
    held.load(p.x + (i64)unit * X_UNIT, room);
    const u32 *x_sums = room.x_sums + threadIdx.x * 2 * TOKEN_TILES;
#pragma unroll 1
    for (u32 index = 0; index < (u32)share.count; ++index) {
        const u32 stage = index % STAGES, depth = index % DEPTH;
        const char *lines = room.ring + stage * STAGE_BYTES;
        float *slot = room.slots + (depth * TILES * WARPS + warp) * SLOT + lane * 2;
        wait_for(room.full + stage, index / STAGES % 2);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            float sums[4];
            multiply_unit(one, held, x_sums, lines, (warp / UNITS * TILES + tile) * 8, unit, sums);
            if (tile == 0 && index >= DEPTH)
                wait_for(room.freed + depth, (index / DEPTH + 1) % 2);
            leave(slot + tile * WARPS * SLOT, sums);
        }
        __syncwarp();
        if (lane == 0)
            arrive(room.summed + depth);
    }
}

extern "C" __global__ void
__launch_bounds__(THREADS, 1)
    quant_held(const char *x, u16 *y, const u16 *residual, const u16 *bias, const char *codes,
               const char *high, const char *scales, const char *blocks, int num_tokens,
               int num_rows, int y_stride, int has_bias, int has_residual) {
    const Problem p = {x, y, residual, bias, codes, high, scales, blocks, num_tokens, num_rows,
                       y_stride, has_bias, has_residual};
    const Room room(shared_memory());
    const Share share(p);
    const int warp = threadIdx.x / 32;
    room.begin();
    if (EARLY)
        let_next_kernel_begin();
    if (warp < MULTIPLIERS) {
#if MULTIPLIER_REGISTERS
        take_registers<MULTIPLIER_REGISTERS>();
#endif
        if (EARLY)
            wait_for_kernels_before();
        if (warp < WARPS)
            multiply_all(p, share, room);
    } else {
#if MULTIPLIER_REGISTERS
        give_registers<OTHER_REGISTERS>();
#endif
        if (warp == MULTIPLIERS) {
            if (is_chosen())
                fill_all(p, share, room);
        } else if (warp - MULTIPLIERS <= DEPTH) {
            if (EARLY)
                wait_for_kernels_before();
            add_all(p, share, room, warp - MULTIPLIERS - 1);
        }
    }
}
