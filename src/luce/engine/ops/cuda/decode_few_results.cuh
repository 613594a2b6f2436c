// What a block of `decode_few.cu` adds up, folds and writes.

// Where a token's part of a line is: lines that a product reads at once lie in other banks.
__device__ __forceinline__ uint4 *value_at(Shared &shared, int worker, int token, int part) {
    return &shared.values[worker][token][part ^ token / 2 % 4];
}

// A warp: this block's share of values of a round's units; zeros for tokens not there yet.
__device__ __forceinline__ void copy_values(const Few &p, const Span &span, Shared &shared,
                                            const Lane &at, int begin, int rank) {
    int block = 0;
    if (at.own < WORKERS && begin + at.own < span.units)
        block = span.table[span.unit(begin + at.own) * 16 / P];
    const int part = at.own % 4, first = at.own / 4;
    for (int worker = 0; worker < WORKERS && begin + worker < span.units; ++worker) {
        const int unit = span.unit(begin + worker);
        const u16 *from =
            p.values + span.place(p, of_lane(block, worker), unit) + rank * SLICE + part * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = first + i * 8;
            copy_async<16>((char *)value_at(shared, worker, token, part),
                           (const char *)(from + token * p.slot_stride),
                           unit * 16 + token < span.length - 1 ? 16 : 0);
        }
    }
    close_copies();
}

// What a lane has of its block's results: of heads 2t and 2t + 1 the numbers quad, quad + 8, ...
struct Results {
    float sums[2][4] = {}; // of two tiles of 16 numbers, as `multiply` has them
    float top = LOWEST, total = 0;

    __device__ __forceinline__ void scale(float share, const Lane &at) {
        const float left = of_lane(share, at.t * 8), right = of_lane(share, at.t * 8 + 4);
        total *= share;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sums[i][0] *= left;
            sums[i][1] *= right;
            sums[i][2] *= left;
            sums[i][3] *= right;
        }
    }

    // Of units, four at a time: those beyond the last are that one once more, times 0.
    __device__ __forceinline__ void add(Shared &shared, int units, bool is_first, const Lane &at) {
        float most = top, more[2][4] = {};
#pragma unroll
        for (int i = 0; i < WORKERS; ++i)
            most = i < units ? fmaxf(most, shared.weights[i][at.own].z) : most;
        if (!is_first)
            scale(exp2_of(top - most), at);
        top = most;
        // A lane says where a line of one of the four small matrices is.
        const int token = at.own / 16 * 8 + at.own % 8, part = at.own / 8 % 2;
#pragma unroll 1
        for (int first = 0; first < units; first += 4)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int unit = min(first + i, units - 1);
                const float4 all = shared.weights[unit][at.own];
                const float share = first + i < units ? exp2_of(all.z - top) : 0;
                const u32 left = bits_of(all.x), right = bits_of(all.y);
                const u32 b0 = pack_bfloat16(half_to_float(left & 0xffff) * share,
                                             half_to_float(left >> 16) * share);
                const u32 b1 = pack_bfloat16(half_to_float(right & 0xffff) * share,
                                             half_to_float(right >> 16) * share);
                total += all.w * share;
#pragma unroll
                for (int tile = 0; tile < 2; ++tile) {
                    u32 a[4];
                    load_turned(a, value_at(shared, unit, token, tile * 2 + part));
                    multiply(i % 2 ? more[tile] : sums[tile], a[0], a[1], a[2], a[3], b0, b1);
                }
            }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sums[i / 4][i % 4] += more[i / 4][i % 4];
    }

    // Of lanes of a head.
    __device__ __forceinline__ void settle_total() {
        total += of_lane_across(total, 1);
        total += of_lane_across(total, 2);
    }
};

// The sums of a part of a context are left for the last to come, which folds all in their order.
__device__ __forceinline__ bool fold(const Few &p, const Span &span, int parts, int rank,
                                     Results &results, const Lane &at) {
    const i64 records = ((i64)blockIdx.y * K + span.head) * PARTS * BLOCKS + rank;
    float4 *own = p.left + (records + span.part * BLOCKS) * 96 + at.own;
    own[0] = make_float4(results.sums[0][0], results.sums[0][1], results.sums[0][2],
                         results.sums[0][3]);
    own[32] = make_float4(results.sums[1][0], results.sums[1][1], results.sums[1][2],
                          results.sums[1][3]);
    own[64] = make_float4(results.top, results.total, 0, 0);
    meet_warp();
    int others = 0;
    int *arrivals = p.arrivals + (blockIdx.y * K + span.head) * BLOCKS + rank;
    if (at.own == 0) {
        others = arrive(arrivals);
        if (others == parts - 1)
            *arrivals = 0;
    }
    if (of_first_lane(others) != parts - 1)
        return false;
    meet_warp();
    results = Results();
    const int at_once = 4;
#pragma unroll 1
    for (int first = 0; first < parts; first += at_once) {
        float4 found[at_once][3];
        float most = results.top;
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const float4 *from = p.left + (records + (first + i) * BLOCKS) * 96 + at.own;
            found[i][2] = make_float4(LOWEST, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < 3; ++j)
                if (first + i < parts)
                    found[i][j] = __ldcg(from + j * 32);
                else if (j < 2)
                    found[i][j] = make_float4(0, 0, 0, 0);
            most = fmaxf(most, found[i][2].x);
        }
        results.scale(exp2_of(results.top - most), at);
        results.top = most;
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            const float share = exp2_of(found[i][2].x - most);
            const float left = of_lane(share, at.t * 8), right = of_lane(share, at.t * 8 + 4);
            results.total += found[i][2].y * share;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                results.sums[j][0] += found[i][j].x * left;
                results.sums[j][1] += found[i][j].y * right;
                results.sums[j][2] += found[i][j].z * left;
                results.sums[j][3] += found[i][j].w * right;
            }
        }
    }
    return true;
}

// Its sigmoid, rounded as separate operations round.
__device__ __forceinline__ float share_of(u16 gate) {
    const float x = bfloat16_to_float(gate), small = exp2_of(-1.4426950408889634f * fabsf(x));
    const float share = (x >= 0 ? 1 : small) * reciprocal_of(1 + small);
    return bfloat16_to_float(float_to_bfloat16(share));
}

// Of two heads, 32 columns of a row as `quant_vector` takes them: rounded to 16 bits of the
// largest. A lane has of each eight of them the quad-th. `ops.triton.quant_activations` says what is where.
__device__ __forceinline__ void write_words(u32 *words, const float (&x)[2][4], const Lane &at) {
    const int groups = K * G * D / 32;
    const int other = WORDS == 2 ? 8 : 16; // The lane across with the other half of words.
    const bool is_upper = at.own & other;
    float most[2], first_sum[2], second_sum[2];
    int codes[2][4];
    u32 first[2], second[2], given[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
        most[j] = fmaxf(fmaxf(fabsf(x[j][0]), fabsf(x[j][1])),
                        fmaxf(fabsf(x[j][2]), fabsf(x[j][3])));
#pragma unroll
    for (int i = 0; i < 6; ++i)
        most[i % 2] = fmaxf(most[i % 2], of_lane_across(most[i % 2], 4 << i / 2));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const float inverse = 32767 * reciprocal_of(most[j] > 0 ? most[j] : 1);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            codes[j][i] = (int)rintf(x[j][i] * inverse);
        first[j] = (codes[j][0] & 0xffff) | (u32)codes[j][1] << 16;
        second[j] = (codes[j][2] & 0xffff) | (u32)codes[j][3] << 16;
        first_sum[j] = codes[j][0] + codes[j][1]; // Exact.
        second_sum[j] = codes[j][2] + codes[j][3];
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
        given[j] = of_lane((int)(is_upper ? first[j] : second[j]), at.own ^ other);
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        first_sum[i % 2] += of_lane_across(first_sum[i % 2], 4 << i / 2);
        second_sum[i % 2] += of_lane_across(second_sum[i % 2], 4 << i / 2);
    }
    const int word = WORDS == 2 ? at.quad % 2 * 2 + at.quad / 4 : at.quad % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        if (at.t * 2 + j >= G)
            continue;
        u32 *own = words + (at.t * 2 + j) * (D / 32);
        u32 *eight = own + (word + is_upper * 8) * groups;
        const u32 low = is_upper ? given[j] : first[j], high = is_upper ? second[j] : given[j];
        eight[0] = __byte_perm(low, high, 0x5410);
        eight[4 * groups] = __byte_perm(low, high, 0x7632);
        if (at.quad == 0) {
            *(float *)(own + 16 * groups) = most[j] * (1.0f / 32767);
            own[17 * groups] = (u32)(int)first_sum[j];
            own[18 * groups] = (u32)(int)second_sum[j];
        }
    }
}

// A warp: what its block has of the results.
__device__ __forceinline__ void write(const Few &p, const Span &span, int rank,
                                      const Results &results, const float (&gates)[2][4],
                                      const Lane &at) {
    const float share = reciprocal_of(results.total);
    const float shares[2] = {of_lane(share, at.t * 8), of_lane(share, at.t * 8 + 4)};
    float x[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[j][i] = results.sums[i / 2][i % 2 * 2 + j] * shares[j];
            if (IS_GATED)
                x[j][i] = bfloat16_to_float(float_to_bfloat16(x[j][i])) * gates[j][i];
        }
    if (WORDS) {
        const int group = (span.head * G * D + rank * SLICE) / 32;
        write_words((u32 *)p.out + (i64)blockIdx.y * (19 * K * G * D / 32) + group, x, at);
        return;
    }
    u16 *out = p.out + ((i64)blockIdx.y * K + span.head) * (G * D) + rank * SLICE + at.quad;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (at.t * 2 + i / 4 < G)
            out[(at.t * 2 + i / 4) * D + i % 4 * 8] = float_to_bfloat16(x[i / 4][i % 4]);
}
