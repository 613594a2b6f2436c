// Attention of a few single tokens and what stands around it: norm and rotation of queries and
// keys, the write to the cache, gates. For bfloat16 and plain caches.
//
// A cluster of blocks of threads has a token and a KV head, or a part of a long context. Two warps
// of each block score a unit of 16 tokens each round, whose keys are in registers before the kernel
// ahead is done, and send the weights to all blocks of the cluster; the third warp adds up, of the
// values of all these units, the numbers that its block has of a head. Units are counted from the
// end of the context, so the newest token, which the kernel ahead makes, is the first block's, and
// it is placed there.
//
// What is summed in which order depends on the context alone, and so do all bits.
//
// Defined outside: G query heads of a KV head, at most 8, K KV heads, D, 256, R, the numbers of a
// head that are rotated, 64 or 128, P tokens of a block of the cache, BLOCKS of a cluster, 8,
// WARPS, 3, PARTS of a context at most, IS_GATED, HAS_NORM, WORDS (results as those of the product behind
// it: 1 in the plain order, 2 in that of tables, 0 as they are), SHARED, bytes of a block of
// threads, EPS_BITS and SCALE_BITS, of float32.

__device__ __forceinline__ void load_keys(const Few &p, const Lane &at, i64 place, Stage &to) {
    const u16 *from = p.keys + place + at.quad * p.slot_stride + at.t * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < D / 32; ++j)
            load_once(&to[(i * (D / 32) + j) * 4], from + i * 8 * p.slot_stride + j * 32);
}

// The newest token's, in place of what was in its slot.
__device__ __forceinline__ void put_key(const uint4 *key, int token, const Lane &at, Stage &keys) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (token != i * 8 + at.quad)
            continue;
#pragma unroll
        for (int j = 0; j < D / 32; ++j) {
            const uint4 part = key[j * 4 + at.t];
            keys[(i * (D / 32) + j) * 4] = part.x;
            keys[(i * (D / 32) + j) * 4 + 1] = part.y;
            keys[(i * (D / 32) + j) * 4 + 2] = part.z;
            keys[(i * (D / 32) + j) * 4 + 3] = part.w;
        }
    }
}

// Of the quad-th head, for tokens 2t, 2t + 1, 2t + 8, 2t + 9 of the unit.
__device__ __forceinline__ void score(const Stage &keys, const uint4 (&queries)[D / 32][32],
                                      int tokens, const Lane &at, float (&scores)[4]) {
    // In parts, so that fewer products wait for one another.
    float parts[4][2][4] = {};
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
        const uint4 query = queries[j][at.own];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 *part = keys + (i * (D / 32) + j) * 4;
            multiply(parts[j % 2 * 2][i], query.x, 0, query.y, 0, part[0], part[1]);
            multiply(parts[j % 2 * 2 + 1][i], query.z, 0, query.w, 0, part[2], part[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float sum = parts[0][i / 2][i % 2] + parts[1][i / 2][i % 2] +
                          (parts[2][i / 2][i % 2] + parts[3][i / 2][i % 2]);
        scores[i] =
            at.t * 2 + i / 2 * 8 + i % 2 < tokens ? sum * __int_as_float(SCALE_BITS) : LOWEST;
    }
}

// A warp: a unit's weights to all blocks.
__device__ __forceinline__ void send(Shared &shared, const float (&scores)[4], int worker,
                                     const Lane &at) {
    float top = fmaxf(fmaxf(scores[0], scores[1]), fmaxf(scores[2], scores[3])), weights[4];
    top = fmaxf(top, of_lane_across(top, 1));
    top = fmaxf(top, of_lane_across(top, 2));
#pragma unroll
    for (int i = 0; i < 4; ++i)
        weights[i] = exp2_of(scores[i] - top);
    const float4 all = make_float4(__int_as_float(pack_half(weights[0], weights[1])),
                                   __int_as_float(pack_half(weights[2], weights[3])), top,
                                   weights[0] + weights[1] + (weights[2] + weights[3]));
#pragma unroll
    for (int rank = 0; rank < BLOCKS; ++rank)
        store_in_block<BLOCKS>(address_in_block<BLOCKS>(&shared.weights[worker][at.own], rank), all,
                               address_in_block<BLOCKS>(shared.arrived, rank));
}

// A warp that scores: its share of the queries, and then its units.
__device__ __forceinline__ void score_units(const Few &p, const Span &span, Shared &shared,
                                            const Lane &at, int rank) {
    const int worker = at.warp * BLOCKS + rank, line = at.warp * 4 + at.own / 8;
    int counted = span.first + worker;
    Stage keys;
    i64 place = 0;
    if (counted < span.units) {
        place = span.place(p, span.table[span.unit(counted) * 16 / P], span.unit(counted));
        load_keys(p, at, place, keys);
    }
    const Factors factors(p, p.query_weight, at);
    meet_cluster<BLOCKS>();
    wait_for_kernels_before();
    Lines queries = {};
    if (line < G)
        queries.load(p.projected + (i64)blockIdx.y * p.token_stride +
                         (IS_GATED + 1) * (span.head * G + line) * D,
                     at);
    queries.place(factors, at);
#pragma unroll
    for (int m = 0; m < 4; ++m)
        shared.queries[m + at.own % 8 / 4 * 4][line * 4 + at.own % 4] = queries.vector(m);
    __syncthreads();
    if (counted == 0)
        put_key(shared.key, (span.length - 1) % 16, at, keys);
    for (int begin = span.first, next; begin < span.units; begin = next) {
        next = begin + span.step;
        float scores[4];
        if (counted < span.units)
            score(keys, shared.queries, counted ? 16 : (span.length - 1) % 16 + 1, at, scores);
        const int after = counted + span.step;
        if (after < span.units)
            load_keys(p, at, span.place(p, span.table[span.unit(after) * 16 / P], span.unit(after)),
                      keys);
        if (begin != span.first)
            wait_for_cluster<BLOCKS>();
        if (counted < span.units)
            send(shared, scores, worker, at);
        if (next < span.units)
            come_to_cluster<BLOCKS>();
        counted = after;
    }
}

// The warp that adds values up; the newest token's key and value are placed by it.
__device__ __forceinline__ void add_values(const Few &p, const Span &span, Shared &shared,
                                           const Lane &at, int rank, int parts) {
    copy_values(p, span, shared, at, span.first, rank);
    const int here = min(WORKERS, span.units - span.first);
    if (at.own == 0) {
        init_barrier(shared.arrived, 1);
        show_barriers();
        expect_bytes(shared.arrived, here * 512);
    }
    meet_warp();
    const bool is_end = span.part == 0, has_key = is_end && rank == 0;
    const Factors factors(p, p.key_weight, at);
    meet_cluster<BLOCKS>();
    wait_for_kernels_before();
    const u16 *token = p.projected + (i64)blockIdx.y * p.token_stride;
    const u16 *lines = token + (IS_GATED + 1) * (K * G) * D;
    Lines key = {};
    u32 value[4] = {};
    if (has_key && at.own < 8)
        key.load(lines + span.head * D, at);
    if (is_end && at.own < SLICE / 8)
        load_once(value, lines + (K + span.head) * D + rank * SLICE + at.own * 8);
    u16 given[2][4] = {};
    if (IS_GATED)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (at.t * 2 + i / 4 < G)
                given[i / 4][i % 4] =
                    __ldcg(token + (2 * (span.head * G + at.t * 2 + i / 4) + 1) * D +
                           rank * SLICE + at.quad + i % 4 * 8);
    const int newest = (span.length - 1) % 16;
    if (has_key) {
        key.place(factors, at);
        if (at.own < 8)
#pragma unroll
            for (int m = 0; m < 4; ++m)
                shared.key[chunk_of(at, m)] = key.vector(m);
    }
    __syncthreads();
    if (is_end) {
        const int unit = span.units - 1;
        const i64 place =
            span.place(p, span.table[unit * 16 / P], unit) + (i64)newest * p.slot_stride;
        if (has_key)
            *(uint4 *)(p.keys + place + at.own * 8) = shared.key[at.own];
        wait_for_closed_copies();
        meet_warp();
        if (at.own < SLICE / 8) {
            const uint4 own = make_uint4(value[0], value[1], value[2], value[3]);
            *value_at(shared, 0, newest, at.own) = own;
            *(uint4 *)(p.values + place + rank * SLICE + at.own * 8) = own;
        }
    }
    float gates[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        gates[i / 4][i % 4] = share_of(given[i / 4][i % 4]);
    Results results;
    int turn = 0;
    for (int begin = span.first, next; begin < span.units; begin = next, turn ^= 1) {
        next = begin + span.step;
        const int units = min(WORKERS, span.units - begin);
        wait_for_closed_copies();
        meet_warp();
        wait_for_stores<BLOCKS>(shared.arrived, turn);
        results.add(shared, units, begin == span.first, at);
        if (begin != span.first)
            wait_for_cluster<BLOCKS>();
        if (next < span.units) {
            meet_warp();
            if (at.own == 0)
                expect_bytes(shared.arrived, min(WORKERS, span.units - next) * 512);
            come_to_cluster<BLOCKS>();
            copy_values(p, span, shared, at, next, rank);
        }
    }
    results.settle_total();
    if (parts > 1 && !fold(p, span, parts, rank, results, at))
        return;
    write(p, span, rank, results, gates, at);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(96, 1)
    decode_few(const u16 *projected, const u16 *query_weight, const u16 *key_weight,
               const float *angles, u16 *cache, const int *tables, const int *rows,
               const int *lengths, float4 *left, int *arrivals, u16 *out, int token_stride,
               int block_stride, int slot_stride, int part_stride, int head_stride,
               int table_stride) {
    static_assert(sizeof(Shared) <= SHARED, "so much memory is asked for");
    let_next_kernel_begin();
    const Few p = {projected, query_weight, key_weight, angles, cache, cache + part_stride,
                   tables, rows, lengths, left, arrivals, out,
                   token_stride, block_stride, slot_stride, head_stride, table_stride};
    Shared &shared = *(Shared *)shared_memory();
    const Lane at;
    const int rank = rank_in_cluster<BLOCKS>(), cluster = blockIdx.x / BLOCKS, part = cluster / K;
    const int row = rows[blockIdx.y], length = lengths[blockIdx.y], units = (length + 15) / 16;
    const int parts = min(PARTS, (units + WORKERS - 1) / WORKERS);
    if (part >= parts)
        return;
    const Span span = {length, units, cluster % K, part, part * WORKERS, parts * WORKERS,
                       tables + (i64)row * table_stride};
    if (at.warp < 2)
        score_units(p, span, shared, at, rank);
    else
        add_values(p, span, shared, at, rank, parts);
}
