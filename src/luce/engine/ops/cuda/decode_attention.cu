// Attention of one query a sequence over its paged context of bfloat16 keys and values.
//
// Blocks of threads take pieces of contexts (`ops.decode_pieces`) in turn, and their warps units of
// 16 tokens of a piece. Keys and values come straight to the registers in which the tensor cores
// take them, STAGES units ahead, over the border of a piece and the next, and no warp waits for the
// others but one of them, another each time, which adds up what they found: so all of them read all
// the time. A warp has the scores of all its units before it weighs values: none is scaled twice.
//
// Defined outside: G query heads of a KV head, at most 8, K KV heads, D, P tokens of a block, a
// multiple of 16, WARPS, UNITS of a warp and piece, STAGES, at most UNITS, BLOCKS of threads a
// multiprocessor holds, and SCALE_BITS, of the float32 that scores are multiplied by, log2(e)
// included.

#define THREADS (32 * WARPS)
// Of a head's values of a warp in shared memory: lanes of two heads fall on other banks.
#define LINE (D + 8)
#define LOWEST __int_as_float(0xff800000) // minus infinity

struct Problem {
    const u16 *qkv, *keys, *values;
    const int *tables;
    const uint4 *pieces;
    float *partials;
    float2 *sums;
    int *arrivals;
    u16 *out;
    int block_stride, slot_stride, head_stride, table_stride, token_stride, out_stride, max_chunks;
};

// A lane's part of a unit's keys or values: 16 bytes each time.
typedef u32 Stage[D / 4];
typedef float Scores[UNITS][4];
typedef float Totals[D / 16][4];

// A lane's place: of a product's rows and columns the quad-th, of its sums' indices the t-th pair.
// Of a piece's units every WARPS-th from the group-th on are its warp's: another group each turn,
// so that no warp always has the most.
struct Lane {
    int warp, quad, t, group;
    __device__ __forceinline__ Lane()
        : warp(threadIdx.x / 32), quad(threadIdx.x % 32 / 4), t(threadIdx.x % 4), group(warp) {}
};

// What a block of threads does next; `units` of it are this warp's.
struct Task {
    int lane, row, length, first, chunk, chunks, head, units;
    int blocks[UNITS];

    __device__ __forceinline__ void take(const uint4 &piece, int index) {
        lane = (int)(piece.x & 0xffff);
        row = (int)(piece.x >> 16);
        length = (int)piece.y;
        first = (int)(piece.z & 0xffff);
        units = (int)(piece.z >> 16);
        chunk = (int)(piece.w & 0xffff);
        chunks = (int)(piece.w >> 16);
        head = index % K;
    }

    __device__ __forceinline__ void look_up(const Problem &p, int group) {
        units = (units - group + WARPS - 1) / WARPS;
        first += group;
        const int *table = p.tables + (i64)row * p.table_stride;
#pragma unroll
        for (int i = 0; i < UNITS; ++i)
            if (i < units)
                blocks[i] = table[first_token(i) / P];
    }

    __device__ __forceinline__ int first_token(int unit) const {
        return (first + unit * WARPS) * 16;
    }

    __device__ __forceinline__ bool is_old(int unit) const {
        return first_token(unit) + 16 < length;
    }

    __device__ __forceinline__ i64 place(const Problem &p, int unit) const {
        return (i64)blocks[unit] * p.block_stride + head * p.head_stride +
               first_token(unit) % P * p.slot_stride;
    }
};

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

// Unit by unit first keys, then values, then the next task's keys.
__device__ __forceinline__ void load_ahead(const Problem &p, const Task &task, const Task &next,
                                           const Lane &at, int turn, Stage &to) {
    if (turn < UNITS)
        load_keys(p, task, at, turn, to);
    else if (turn < 2 * UNITS)
        load_values(p, task, at, turn - UNITS, to);
    else
        load_keys(p, next, at, turn - 2 * UNITS, to);
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

// Scores become weights. Returns what their sum and the largest score are, for the quad-th head.
__device__ __forceinline__ float2 weigh(int units, Scores &scores) {
    const float scale = __int_as_float(SCALE_BITS);
    float top = LOWEST, total = 0;
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            top = fmaxf(top, scores[unit][i]);
    top = fmaxf(top, of_lane_across(top, 1));
    top = fmaxf(top, of_lane_across(top, 2)) * scale;
    if (!units)
        return make_float2(LOWEST, 0);
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scores[unit][i] = exp2f(scores[unit][i] * scale - top);
            total += scores[unit][i];
        }
    total += of_lane_across(total, 1);
    total += of_lane_across(total, 2);
    return make_float2(top, total);
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

// Results of the warps, where the one that adds them up can read them.
struct alignas(16) Gathered {
    float values[WARPS][G][LINE];
    float2 sums[WARPS][G];
    int turn; // that was added up last

    __device__ __forceinline__ void put(const Lane &at, const Totals &totals, float2 sum) {
#pragma unroll
        for (int j = 0; j < 2; ++j)
            if (at.t * 2 + j < G)
#pragma unroll
                for (int i = 0; i < D / 16; i += 2)
                    *(float4 *)&values[at.group][at.t * 2 + j][i / 4 * 64 + at.quad * 8 + i % 4 * 2] =
                        make_float4(totals[i][j], totals[i][j + 2], totals[i + 1][j],
                                    totals[i + 1][j + 2]);
        if (at.t == 0 && at.quad < G)
            sums[at.group][at.quad] = sum;
    }
};

// Of parts: each weighs by how far its largest score is below the largest of all.
struct Weighted {
    float top = LOWEST, total = 0;
    float4 value = {0, 0, 0, 0};

    __device__ __forceinline__ void add(float2 sum, const float4 &part) {
        const float share = exp2f(sum.x - top);
        total += sum.y * share;
        value.x += part.x * share;
        value.y += part.y * share;
        value.z += part.z * share;
        value.w += part.w * share;
    }

    // With a part that is there among them, or before.
    template <int N>
    __device__ __forceinline__ void add_all(const float2 (&sums)[N], const float4 (&parts)[N]) {
        const float before = top;
#pragma unroll
        for (int i = 0; i < N; ++i)
            top = fmaxf(top, sums[i].x);
        const float2 own = make_float2(before, total);
        const float4 own_value = value;
        total = 0;
        value = make_float4(0, 0, 0, 0);
        add(own, own_value);
#pragma unroll
        for (int i = 0; i < N; ++i)
            add(sums[i], parts[i]);
    }

    __device__ __forceinline__ void store(u16 *to) const {
        const float share = 1 / total;
        *(uint2 *)to = make_uint2(pack_bfloat16(value.x * share, value.y * share),
                                  pack_bfloat16(value.z * share, value.w * share));
    }
};

// A chunk of a context that a warp has left for whoever folds the chunks, perhaps itself.
struct Left {
    int lane, head, chunks, others;
};

__device__ __forceinline__ i64 record_of(const Problem &p, int lane, int head) {
    return ((i64)lane * (K * G) + head) * p.max_chunks;
}

// A warp: add up what all have put there, and write the result or the chunk's part of it.
__device__ __forceinline__ void combine(const Problem &p, const Task &task,
                                        const Gathered &gathered, Left &left) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = lane * 4; i < G * D; i += 128) {
        const int head = i / D, dim = i % D;
        Weighted all;
#pragma unroll
        for (int group = 0; group < WARPS; ++group)
            all.top = fmaxf(all.top, gathered.sums[group][head].x);
#pragma unroll
        for (int group = 0; group < WARPS; ++group)
            all.add(gathered.sums[group][head], *(float4 *)&gathered.values[group][head][dim]);
        const int number = task.head * G + head;
        if (task.chunks == 1) {
            all.store(p.out + (i64)task.lane * p.out_stride + number * D + dim);
        } else {
            const i64 record = record_of(p, task.lane, number) + task.chunk;
            *(float4 *)(p.partials + record * D + dim) = all.value;
            if (dim == 0)
                p.sums[record] = make_float2(all.top, all.total);
        }
    }
    left = {task.lane, task.head, task.chunks == 1 ? 0 : task.chunks, 0};
    if (!left.chunks)
        return;
    meet_warp();
    if (lane == 0)
        left.others = arrive(p.arrivals + task.lane * K + task.head);
}

// A warp: if its chunk was the last to come of a context, fold all of them in their order.
__device__ __forceinline__ void fold_if_last(const Problem &p, Left &left) {
    if (!left.chunks)
        return;
    const int chunks = left.chunks, lane = threadIdx.x % 32;
    left.chunks = 0;
    if (of_first_lane(left.others) != chunks - 1)
        return;
    if (lane == 0)
        p.arrivals[left.lane * K + left.head] = 0;
    // Few registers are free, and a round trip takes longer than the sums: so many at once.
    const int heads = 2, at_once = 4;
#pragma unroll 1
    for (int i = lane * 4; i < G * D; i += heads * 128) {
        Weighted all[heads];
        for (int chunk = 0; chunk < chunks; chunk += at_once) {
            float2 sums[heads][at_once];
            float4 parts[heads][at_once];
#pragma unroll
            for (int k = 0; k < heads * at_once; ++k) {
                const int from = i + k / at_once * 128, number = chunk + k % at_once;
                const i64 record = record_of(p, left.lane, left.head * G + from / D) + number;
                const bool is_there = number < chunks && from < G * D;
                sums[k / at_once][k % at_once] = make_float2(LOWEST, 0);
                parts[k / at_once][k % at_once] = make_float4(0, 0, 0, 0);
                if (is_there) {
                    sums[k / at_once][k % at_once] = __ldcg(p.sums + record);
                    parts[k / at_once][k % at_once] =
                        __ldcg((const float4 *)(p.partials + record * D + from % D));
                }
            }
#pragma unroll
            for (int k = 0; k < heads; ++k)
                if (i + k * 128 < G * D)
                    all[k].add_all(sums[k], parts[k]);
        }
#pragma unroll
        for (int k = 0; k < heads; ++k)
            if (i + k * 128 < G * D)
                all[k].store(p.out + (i64)left.lane * p.out_stride + left.head * G * D + i +
                             k * 128);
    }
}

// Warps put results in turns into two places; another one each time adds them up, for which alone
// it waits. It may still be reading when the others are there again.
template <int PLACE>
__device__ __forceinline__ void finish(const Problem &p, const Task &task, const Lane &at,
                                       const Totals &totals, float2 sum, int turn,
                                       Gathered (&places)[2], Left &left) {
    Gathered &gathered = places[PLACE];
    const int full = 1 + PLACE;
    wait_for(&gathered.turn, turn - 2);
    gathered.put(at, totals, sum);
    if (at.warp != turn % WARPS) {
        pass<full, THREADS>();
        return;
    }
    wait_at<full, THREADS>();
    combine(p, task, gathered, left);
    tell(&gathered.turn, turn);
}

__device__ __forceinline__ void work(const Problem &p) {
    __shared__ Gathered places[2];
    if (threadIdx.x < 2)
        places[threadIdx.x].turn = -1;
    __syncthreads();
    const uint4 nothing = make_uint4(0, 0, 0, 0);
    // Asked for at the same time; there is one for every block of threads, or something else.
    const uint4 head = p.pieces[0], first = p.pieces[1 + blockIdx.x / K];
    const int count = (int)head.x * K;
    Lane at;
    Task task, next;
    Left left = {0, 0, 0, 0};
    Stage stages[STAGES];
    u32 query[D / 8];
    task.take((int)blockIdx.x < count ? first : nothing, blockIdx.x);
    task.look_up(p, at.group);
    // Kernels before may still be writing the last token of each context; others are there.
#pragma unroll
    for (int unit = 0; unit < STAGES; ++unit)
        if (task.is_old(unit))
            load_keys(p, task, at, unit, stages[unit]);
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
        Scores scores;
        const int after = index + gridDim.x;
        next.take(after < count ? p.pieces[1 + after / K] : nothing, after);
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                scores[unit][i] = LOWEST;
            if (unit < task.units)
                score(stages[unit % STAGES], query, task.length - task.first_token(unit), at,
                      scores[unit]);
            load_ahead(p, task, next, at, unit + STAGES, stages[unit % STAGES]);
        }
        next.look_up(p, (at.group + 1) % WARPS);
        load_query(p, next, at, query);
        const float2 sum = weigh(task.units, scores);
        Totals totals = {};
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const int step = UNITS + unit;
            if (unit < task.units) {
                const int tokens = task.length - task.first_token(unit);
                if (tokens < 16)
                    forget(stages[step % STAGES], tokens, at);
                add_values(stages[step % STAGES], scores[unit], totals);
            }
            load_ahead(p, task, next, at, step + STAGES, stages[step % STAGES]);
        }
        if (turn % 2)
            finish<1>(p, task, at, totals, sum, turn, places, left);
        else
            finish<0>(p, task, at, totals, sum, turn, places, left);
        if (at.warp != turn % WARPS)
            fold_if_last(p, left);
        at.group = (at.group + 1) % WARPS;
        ++turn;
        task = next;
    }
    fold_if_last(p, left);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    decode_attention(const u16 *qkv, const u16 *keys, const u16 *values, const int *tables,
                     const uint4 *pieces, float *partials, float2 *sums, int *arrivals, u16 *out,
                     int block_stride, int slot_stride, int head_stride, int table_stride,
                     int token_stride, int out_stride, int max_chunks) {
    let_next_kernel_begin();
    work({qkv, keys, values, tables, pieces, partials, sums, arrivals, out, block_stride,
          slot_stride, head_stride, table_stride, token_stride, out_stride, max_chunks});
}
