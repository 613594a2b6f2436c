// What the warps of a block found of a piece, and blocks of a context: see `decode_attention.cu`.

// Of a head's values of a warp in shared memory: lanes of two heads fall on other banks.
#define LINE (D + 8)

// A context whose last chunk was found: all warps of its block of threads fold a share of them.
// No chunks: of others more are to come.
struct Left {
    int lane, head, chunks;
};

// Results of the warps, where the one that adds them up can read them.
struct alignas(16) Gathered {
    float values[WARPS][G][LINE];
    float2 sums[WARPS][G];
    // By how much each weighs, and the sums of all.
    float shares[G][WARPS];
    float2 all[G];
    int turn; // that was added up last
    Left left;

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

    // A warp: of the quad-th head the t-th of four groups each time. Several warps may do the same.
    __device__ __forceinline__ void weigh(const Lane &at) {
        float top = LOWEST, total = 0;
        float2 own[WARPS / 4];
#pragma unroll
        for (int i = 0; i < WARPS / 4; ++i) {
            own[i] = at.quad < G ? sums[i * 4 + at.t][at.quad] : make_float2(0, 0);
            top = fmaxf(top, own[i].x);
        }
        top = fmaxf(top, of_lane_across(top, 1));
        top = fmaxf(top, of_lane_across(top, 2));
#pragma unroll
        for (int i = 0; i < WARPS / 4; ++i) {
            const float share = exp2f(own[i].x - top);
            total += own[i].y * share;
            if (at.quad < G)
                shares[at.quad][i * 4 + at.t] = share;
        }
        total += of_lane_across(total, 1);
        total += of_lane_across(total, 2);
        if (at.t == 0 && at.quad < G)
            all[at.quad] = make_float2(top, total);
        meet_warp();
    }
};

__device__ __forceinline__ void add_part(float4 &value, float share, const float4 &part) {
    value.x += part.x * share;
    value.y += part.y * share;
    value.z += part.z * share;
    value.w += part.w * share;
}

// Whether heads of this size may have gates.
const bool MAY_HAVE_GATES = D > 128;

// Times the sigmoid of its gate, each rounded as separate operations round.
__device__ __forceinline__ float gated(u16 value, u16 gate) {
    const float x = bfloat16_to_float(gate), small = exp2f(-1.4426950408889634f * fabsf(x));
    const float share = (x >= 0 ? 1 : small) / (1 + small);
    return bfloat16_to_float(value) * bfloat16_to_float(float_to_bfloat16(share));
}

__device__ __forceinline__ u32 gated_pair(u32 pair, u32 gates) {
    return pack_bfloat16(gated((u16)pair, (u16)gates), gated((u16)(pair >> 16), (u16)(gates >> 16)));
}

// Of a lane's token and query head, from a dimension on.
__device__ __forceinline__ void store_result(const Problem &p, int lane, int number, int dim,
                                             const float4 &value, float total) {
    const float share = 1 / total;
    uint2 result = make_uint2(pack_bfloat16(value.x * share, value.y * share),
                              pack_bfloat16(value.z * share, value.w * share));
    if (MAY_HAVE_GATES && p.gate_stride) {
        const uint2 gates =
            *(const uint2 *)(p.gates + (i64)lane * p.gate_stride + (2 * number + 1) * D + dim);
        result = make_uint2(gated_pair(result.x, gates.x), gated_pair(result.y, gates.y));
    }
    *(uint2 *)(p.out + (i64)lane * p.out_stride + number * D + dim) = result;
}

// Of parts: each weighs by how far its largest score is below the largest of all.
struct Weighted {
    float top = LOWEST, total = 0;
    float4 value = {0, 0, 0, 0};

    __device__ __forceinline__ void add(float2 sum, const float4 &part) {
        const float share = exp2f(sum.x - top);
        total += sum.y * share;
        add_part(value, share, part);
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
};

__device__ __forceinline__ i64 record_of(const Problem &p, int lane, int head) {
    return ((i64)lane * (K * G) + head) * p.max_chunks;
}

// A warp: add up what all have put there, from a number on and some further each time, and write
// the result or the chunk's part of it.
__device__ __forceinline__ void combine(const Problem &p, const Task &task, const Lane &at,
                                        Gathered &gathered, int begin, int step) {
    gathered.weigh(at);
#pragma unroll 2
    for (int i = begin + at.own * 4; i < G * D; i += step) {
        const int head = i / D, dim = i % D, number = task.head * G + head;
        float4 value = {0, 0, 0, 0};
#pragma unroll
        for (int group = 0; group < WARPS; ++group)
            add_part(value, gathered.shares[head][group],
                     *(float4 *)&gathered.values[group][head][dim]);
        const float2 all = gathered.all[head];
        if (task.chunks == 1) {
            store_result(p, task.lane, number, dim, value, all.y);
        } else {
            const i64 record = record_of(p, task.lane, number) + task.chunk;
            *(float4 *)(p.partials + record * D + dim) = value;
            if (dim == 0)
                p.sums[record] = all;
        }
    }
}

// A warp: its share of folding the chunks in their order, if they are all there.
__device__ __forceinline__ void fold(const Problem &p, const Lane &at, const Left &left) {
    // Few registers are free, and a round trip takes longer than the sums: so many at once.
    const int heads = D / 128 + (D < 128), at_once = 4, share = heads * 128, chunks = left.chunks;
    if (!chunks)
        return;
#pragma unroll 1
    for (int i = at.warp * share + at.own * 4; i < G * D; i += WARPS * share) {
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
                store_result(p, left.lane, left.head * G + (i + k * 128) / D, (i + k * 128) % D,
                             all[k].value, all[k].total);
    }
}

// One lane: leave a chunk to be folded, and count it. Returns how many were there before it.
__device__ __forceinline__ int leave(const Problem &p, const Task &task, Left &left) {
    left = {task.lane, task.head, task.chunks};
    return task.chunks == 1 ? 0 : arrive(p.arrivals + task.lane * K + task.head);
}

// One lane: only the last to come has left something.
__device__ __forceinline__ void settle_left(const Problem &p, int others, Left &left) {
    if (left.chunks == 1 || others != left.chunks - 1)
        left.chunks = 0;
    else
        p.arrivals[left.lane * K + left.head] = 0;
}

// Warps put results in turns into two places; another one each time adds them up, for which alone
// it waits. It may still be reading when the others are there again, and says that it is done in
// its next turn, when it knows what is left. What comes last all warps add up together, since
// nothing else is to do.
__device__ __forceinline__ void finish(const Problem &p, const Task &task, const Lane &at,
                                       int turn, bool is_last, Gathered &gathered,
                                       int &others) {
    if (!is_last && at.warp != turn % WARPS) {
        if (turn % 2)
            pass<2, THREADS>();
        else
            pass<1, THREADS>();
        return;
    }
    if (turn % 2)
        wait_at<2, THREADS>();
    else
        wait_at<1, THREADS>();
    combine(p, task, at, gathered, is_last ? at.warp * 128 : 0, is_last ? WARPS * 128 : 128);
    if (!is_last) {
        meet_warp();
        if (at.own == 0)
            others = leave(p, task, gathered.left);
    } else if (task.chunks > 1) {
        wait_at<3, THREADS>();
        if (threadIdx.x == 0)
            settle_left(p, leave(p, task, gathered.left), gathered.left);
        wait_at<3, THREADS>();
    }
}

// All warps: fold what was left two turns ago, and in the end of the last turns too.
__device__ __forceinline__ void fold_left(const Problem &p, const Task &task, const Lane &at,
                                          Left left, int turn, bool is_last,
                                          const Gathered (&places)[2]) {
    const int until = !is_last ? 2 : task.chunks == 1 ? 1 : 0;
#pragma unroll 1
    for (int ago = 2;; --ago) {
        fold(p, at, left);
        if (ago == until)
            break;
        const Gathered &place = places[(turn + ago + 1) % 2];
        if (ago == 2)
            wait_for(&place.turn, turn - 1);
        left = place.left;
    }
}
