// Attention of one query a sequence over its paged context of bfloat16 keys and values.
//
// Blocks of threads take pieces of contexts (`ops.decode_pieces`) in turn, and their warps units of
// 16 tokens of a piece. Keys and values come straight to the registers in which the tensor cores
// take them, STAGES units ahead, over the border of a piece and the next, and no warp waits for the
// others but one of them, another each time, which adds up what they found: so all of them read all
// the time. A warp has the scores of all its units before it weighs values: none is scaled twice.
//
// Loops over units are not unrolled further than stages are: instructions that do not fit the
// processor's cache for them cost more than they save.
//
// Defined outside: G query heads of a KV head, at most 8, K KV heads, D, P tokens of a block, a
// multiple of 16, WARPS, a multiple of 4, UNITS of a warp and piece, STAGES, at most UNITS, BLOCKS
// of threads a multiprocessor holds, SHARED, bytes of each, and SCALE_BITS, of the float32 that
// scores are multiplied by, log2(e) included.

__device__ __forceinline__ void load_keys(const Problem &p, const Task &task, const Lane &at,
                                          int unit, Stage &to) {
    if (unit >= task.units)
        return;
    const u16 *from = p.keys + task.place(p, unit) + at.quad * p.slot_stride + at.t * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < D / 32; ++j)
            load_once(&to[(i * (D / 32) + j) * 4], from + i * 8 * p.slot_stride + j * 32);
}

__device__ __forceinline__ void load_values(const Problem &p, const Task &task, const Lane &at,
                                            int unit, Stage &to) {
    if (unit >= task.units)
        return;
    const u16 *from = p.values + task.place(p, unit) + at.t * 2 * p.slot_stride + at.quad * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < D / 64; ++j)
            load_once(&to[(i * (D / 64) + j) * 4],
                      from + (i / 2 * 8 + i % 2) * p.slot_stride + j * 64);
}

// Ask for a unit's keys or values, a line of 128 bytes each time.
__device__ __forceinline__ void ask_for(const Problem &p, const Lane &at, const u16 *from) {
#pragma unroll
    for (int i = at.own; i < 16 * D / 64; i += 32)
        bring_closer(from + i / (D / 64) * p.slot_stride + i % (D / 64) * 64);
}

// For values, and for keys if those of one unit alone are not loaded yet. Where there is more to
// read it only comes in another order so, and later.
__device__ __forceinline__ void ask_ahead(const Problem &p, const Task &task, const Lane &at) {
#pragma unroll 1
    for (int unit = 0; unit < task.units; ++unit) {
        const i64 place = task.place(p, unit);
        if (unit >= STAGES && task.units == STAGES + 1)
            ask_for(p, at, p.keys + place);
        ask_for(p, at, p.values + place);
    }
}

__device__ __forceinline__ void load_query(const Problem &p, const Task &task, const Lane &at,
                                           u32 (&query)[D / 8]) {
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
        query[i] = 0;
    if (!task.units || at.quad >= G)
        return;
    const u16 *from = p.qkv + (i64)task.lane * p.token_stride + (task.head * G + at.quad) * D;
#pragma unroll
    for (int j = 0; j < D / 32; ++j)
        load_once(&query[j * 4], from + at.t * 8 + j * 32);
}

// Of the quad-th head, for tokens 2t, 2t + 1, 2t + 8, 2t + 9 of the unit.
__device__ __forceinline__ void score(const Stage &keys, const u32 (&query)[D / 8], int tokens,
                                      const Lane &at, float (&scores)[4]) {
    // In parts, so that fewer products wait for one another.
    float parts[2][2][4] = {};
#pragma unroll
    for (int j = 0; j < D / 16; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            multiply(parts[j % 2][i], query[2 * j], 0, query[2 * j + 1], 0,
                     keys[(i * (D / 16) + j) * 2], keys[(i * (D / 16) + j) * 2 + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float sum = parts[0][i / 2][i % 2] + parts[1][i / 2][i % 2];
        scores[i] = at.t * 2 + i / 2 * 8 + i % 2 < tokens ? sum : LOWEST;
    }
}

// The largest of them, for the quad-th head, times what they are multiplied by.
__device__ __forceinline__ float top_of(float top) {
    top = fmaxf(top, of_lane_across(top, 1));
    return fmaxf(top, of_lane_across(top, 2)) * __int_as_float(SCALE_BITS);
}

// Scores become weights, which are added to a sum.
__device__ __forceinline__ void weigh(float top, float (&scores)[4], float &total) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        scores[i] = exp2f(scores[i] * __int_as_float(SCALE_BITS) - top);
        total += scores[i];
    }
}

// Tokens that are not there are not multiplied by their weight, 0: they may be anything.
__device__ __forceinline__ void forget(Stage &values, int tokens, const Lane &at) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (at.t * 2 + i / 2 * 8 + i % 2 >= tokens)
#pragma unroll
            for (int j = 0; j < D / 16; ++j)
                values[i * (D / 16) + j] = 0;
}

// Rows of a product are dimensions: of a lane's eight the even ones, then the odd ones.
__device__ __forceinline__ void add_values(const Stage &values, const float (&weights)[4],
                                           Totals &totals) {
    const u32 first = pack_bfloat16(weights[0], weights[1]);
    const u32 second = pack_bfloat16(weights[2], weights[3]);
    const int line = D / 16;
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
        multiply(totals[i], __byte_perm(values[i], values[line + i], 0x5410),
                 __byte_perm(values[i], values[line + i], 0x7632),
                 __byte_perm(values[2 * line + i], values[3 * line + i], 0x5410),
                 __byte_perm(values[2 * line + i], values[3 * line + i], 0x7632), first, second);
}

struct Shared {
    Gathered places[2];
    float4 scores[WARPS][UNITS][32];
};

// Where registers do not suffice for the next query beside the sums of values, it is asked for
// behind them.
const bool IS_QUERY_LATE = D > 128;

__device__ __forceinline__ void work(const Problem &p) {
    static_assert(sizeof(Shared) <= SHARED, "so much memory is asked for");
    Shared &shared = *(Shared *)shared_memory();
    if (threadIdx.x < 2) {
        shared.places[threadIdx.x].turn = -1;
        shared.places[threadIdx.x].left.chunks = 0;
    }
    __syncthreads();
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    // Asked for at the same time; there is one for every block of threads, or something else.
    const uint4 head = p.pieces[0], first = p.pieces[1 + blockIdx.x / K];
    const int count = (int)head.x * K;
    Lane at;
    float4(*scores)[32] = shared.scores[at.warp];
    Task task, next;
    int others = 0;
    Stage stages[STAGES];
    u32 query[D / 8];
    task.take((int)blockIdx.x < count ? first : nothing, blockIdx.x);
    task.look_up(p, at, at.group);
    // Kernels before may still be writing the last token of each context; others are there.
#pragma unroll
    for (int unit = 0; unit < STAGES; ++unit)
        if (task.is_old(unit))
            load_keys(p, task, at, unit, stages[unit]);
    if (count * (int)(first.z >> 16) <= p.few)
        ask_ahead(p, task, at);
    wait_for_kernels_before();
#pragma unroll
    for (int unit = 0; unit < STAGES; ++unit) {
        if (!task.is_old(unit))
            load_keys(p, task, at, unit, stages[unit]);
    }
    load_query(p, task, at, query);
    int turn = 0;
#pragma unroll 1
    for (int index = blockIdx.x; index < count; index += gridDim.x) {
        const int after = index + gridDim.x;
        const bool is_last = after >= count;
        Gathered &gathered = shared.places[turn % 2], &before = shared.places[(turn + 1) % 2];
        next.take(is_last ? nothing : p.pieces[1 + after / K], after);
        float top = LOWEST, total = 0;
#pragma unroll 1
        for (int begin = 0; begin == 0 || begin < task.units; begin += STAGES)
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                const int unit = begin + stage;
                if (unit < task.units) {
                    float found[4];
                    score(stages[stage], query, task.length - task.first_token(unit), at, found);
                    top = fmaxf(top, fmaxf(fmaxf(found[0], found[1]), fmaxf(found[2], found[3])));
                    scores[unit][at.own] = make_float4(found[0], found[1], found[2], found[3]);
                }
                if (begin + STAGES < task.units)
                    load_keys(p, task, at, unit + STAGES, stages[stage]);
                else
                    load_values(p, task, at, stage, stages[stage]);
            }
        next.look_up(p, at, (at.group + 1) % WARPS);
        if (!IS_QUERY_LATE)
            load_query(p, next, at, query);
        if (turn && at.warp == (turn - 1) % WARPS) {
            if (at.own == 0)
                settle_left(p, others, before.left);
            tell(&before.turn, turn - 1);
        }
        top = top_of(top);
        Totals totals = {};
#pragma unroll 1
        for (int begin = 0; begin == 0 || begin < task.units; begin += STAGES)
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                const int unit = begin + stage;
                if (unit < task.units) {
                    const float4 found = scores[unit][at.own];
                    float weights[4] = {found.x, found.y, found.z, found.w};
                    weigh(top, weights, total);
                    const int tokens = task.length - task.first_token(unit);
                    if (tokens < 16)
                        forget(stages[stage], tokens, at);
                    add_values(stages[stage], weights, totals);
                }
                if (begin + STAGES < task.units)
                    load_values(p, task, at, unit + STAGES, stages[stage]);
                else
                    load_keys(p, next, at, stage, stages[stage]);
            }
        total += of_lane_across(total, 1);
        total += of_lane_across(total, 2);
        wait_for(&gathered.turn, turn - 2);
        const Left left = gathered.left;
        gathered.put(at, totals, make_float2(top, total));
        finish(p, task, at, turn, is_last, gathered, others);
        fold_left(p, task, at, left, turn, is_last, shared.places);
        if (IS_QUERY_LATE)
            load_query(p, next, at, query);
        at.group = (at.group + 1) % WARPS;
        ++turn;
        task = next;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    decode_attention(const u16 *qkv, const u16 *keys, const u16 *values, const int *tables,
                     const uint4 *pieces, float *partials, float2 *sums, int *arrivals, u16 *out,
                     int block_stride, int slot_stride, int head_stride, int table_stride,
                     int token_stride, int out_stride, int max_chunks, int few, const u16 *gates,
                     int gate_stride) {
    let_next_kernel_begin();
    work({qkv, keys, values, tables, pieces, partials, sums, arrivals, out, block_stride,
          slot_stride, head_stride, table_stride, token_stride, out_stride, max_chunks, few,
          gates, gate_stride});
}
