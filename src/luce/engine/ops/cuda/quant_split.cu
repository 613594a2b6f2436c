// Matrix of quantised rows times up to TOKENS vectors: columns are split among a cluster's blocks
// of threads and their warps.
//
// y[t, n] = sum_k x[t, k] W[n, k] (+ bias[n]) (+ residual[t, n]); W in the planes of
// luce.loaders.quant_formats, x as quant_staged_rows.cuh has it, y bfloat16, sums in float32.
//
// A cluster has a run of row pairs (32 rows) of the matrix, each of its CLUSTER blocks of threads
// a run of their columns, of which x lies in shared memory all the time. A block's units of so many
// pairs as there is room for, `round`, are one line that its warps share out evenly; each takes
// weights from memory right into its registers, and leaves the sums of what it has of a pair in
// shared memory. Then the cluster adds each pair's parts in order. So the order of a sum depends
// on the matrix, `round` and CLUSTER alone.
//
// Columns may be summed in any order: a thread's 16 bytes of codes are a group of 32 columns, it
// knows their scale alone, and no code ever moves between threads. Weights become half-precision
// numbers, codes times scales exactly where a block of 256 columns has a scale of its own, which
// then multiplies sums. Minima meet the sums of x in one more product of a unit.
//
// EARLY kernels are launched while the one before is at work: they ask for their first weights,
// then wait for it.

#define SLOT_LINE 36
#define SLOT (TOKENS * SLOT_LINE)

typedef float Totals[2][TOKEN_TILES][4];

__device__ __forceinline__ void clear(Totals &total) {
#pragma unroll
    for (int i = 0; i < 2 * TOKEN_TILES * 4; ++i)
        total[i / 4 / TOKEN_TILES][i / 4 % TOKEN_TILES][i % 4] = 0.0f;
}

// A thread's place in its warp, as products have it, and where it reads x of `quad` among eight
// tokens.
struct Place {
    int quad, t;
    const char *x;
    __device__ __forceinline__ explicit Place(const Vectors &vectors) {
        const int lane = threadIdx.x % 32;
        quad = lane / 4;
        t = lane % 4;
        x = vectors.x + lane * 16;
    }
    __device__ __forceinline__ uint4 vector(int unit, int span, int eight, int tile) const {
        return *(const uint4 *)(x + unit * X_UNIT +
                                ((span * 4 + eight) * TOKEN_TILES + tile) * X_TILE);
    }
};

// The products of half of a unit's columns; then its registers are filled again.
__device__ __forceinline__ void add_span(const Problem &p, const Constants &one, const Place &at,
                                         int span, int x_unit, Unit &unit, u32 (&minima)[ROWS],
                                         Totals &total) {
    GroupScale scales[ROWS] = {{one, unit.scales[span][0]}, {one, unit.scales[span][1]},
                               {one, unit.scales[span][2]}, {one, unit.scales[span][3]}};
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
        u32 a[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            unit.weights(one, scales[r], span, r, eight, a[r]);
#pragma unroll
        for (int k = 0; k < TOKEN_TILES; ++k) {
            const uint4 v = at.vector(x_unit, span, eight, k);
#pragma unroll
            for (int tile = 0; tile < 2; ++tile) {
                const u32(&up)[4] = a[tile * 2], (&down)[4] = a[tile * 2 + 1];
                multiply_halves(total[tile][k], up[0], down[0], up[1], down[1], v.x, v.y);
                multiply_halves(total[tile][k], up[2], down[2], up[3], down[3], v.z, v.w);
            }
        }
    }
    if (HAS_MINIMA)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            minima[r] = scales[r].minimum;
    unit.load(p, span, at.t);
}

// A unit's sums by the scales of its blocks and of its x, and its minima.
__device__ __forceinline__ void add_scaled(const Vectors &vectors, const Place &at, int unit,
                                           const u32 (&blocks)[ROWS],
                                           const u32 (&minima)[SPANS][ROWS],
                                           const Totals &products, Totals &total) {
#pragma unroll
    for (int k = 0; k < TOKEN_TILES; ++k) {
        const char *line = vectors.x + unit * X_UNIT;
        const float *back = (const float *)(line + BACK_AT) + k * 8 + at.t * 2;
        const float backs[2] = {back[0], back[1]};
        const u32 *sums = (const u32 *)(line + SUMS_AT) + k * GROUPS * 8 + at.t * 8 + at.quad;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            const u32(&first)[ROWS] = minima[0], (&second)[ROWS] = minima[1];
            float c[4] = {};
            if (HAS_MINIMA)
                multiply_halves(c, first[tile * 2], first[tile * 2 + 1], second[tile * 2],
                                second[tile * 2 + 1], sums[0], sums[4 * 8]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 block = blocks[tile * 2 + i / 2];
                float value = products[tile][k][i];
                if (BLOCK_BYTES)
                    value *= half_to_float(block & 0xffff);
                if (HAS_MINIMA)
                    value = fmaf(-half_to_float(block >> 16), c[i], value);
                total[tile][k][i] = fmaf(value, backs[i % 2], total[tile][k][i]);
            }
        }
    }
}

// The sums of a part to where the cluster finds them.
__device__ __forceinline__ void leave(const Place &at, float *slot, Totals &total) {
#pragma unroll
    for (int k = 0; k < TOKEN_TILES; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float *line = slot + (k * 8 + at.t * 2 + i) * SLOT_LINE + at.quad;
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                line[r * 8] = total[r / 2][k][r % 2 * 2 + i];
        }
    clear(total);
}

// What a block of threads works on.
struct Share {
    int first_pair, end_pair, first_unit, units, round;

    __device__ __forceinline__ Share(const Problem &p, int rank, int round) : round(round) {
        const int pairs = (p.num_rows + PAIR_ROWS - 1) / PAIR_ROWS;
        const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
        first_pair = (u32)cluster * pairs / clusters;
        end_pair = (u32)(cluster + 1) * pairs / clusters;
        first_unit = first_unit_of(p, rank);
        units = first_unit_of(p, rank + 1) - first_unit;
    }
    __device__ __forceinline__ static int first_unit_of(const Problem &p, int rank) {
        return rank * p.num_units / CLUSTER;
    }
    __device__ __forceinline__ static int most_units(const Problem &p) {
        return (p.num_units + CLUSTER - 1) / CLUSTER;
    }
    // Pairs of the round that begins with this one.
    __device__ __forceinline__ int pairs_from(int pair) const {
        return min(round, end_pair - pair);
    }
};

// The line of a round's units, pair by pair, as warps share it out: those that there are units for.
struct Line {
    int units, length, warps; // units of a pair, of all of them
    float part;               // of one of them

    __device__ __forceinline__ Line(int units, int pairs)
        : units(units), length(units * pairs), warps(min(WARPS, length)), part(1.0f / length) {}
    __device__ __forceinline__ int begin(int warp) const {
        return min(warp, warps) * length / warps;
    }
    // ((at + 1) * warps - 1) / length, exactly: there are fewer than 2^17.
    __device__ __forceinline__ int owner(int at) const {
        return (int)(((at + 1) * warps - 0.5f) * part);
    }
    // Warps that have parts of a pair. Where the next pair begins, or the next warp, is the next
    // slot, or the one after it.
    __device__ __forceinline__ int first_slot(int pair) const { return owner(pair * units) + pair; }
    __device__ __forceinline__ int last_slot(int pair) const {
        return owner((pair + 1) * units - 1) + pair;
    }
};

// A warp's way through its units.
struct Way {
    int left, unit, pair, first_pair; // pair: of the round that begins with `first_pair`

    __device__ __forceinline__ void begin(const Share &share, int first) {
        const int warp = threadIdx.x / 32;
        const Line line(share.units, share.pairs_from(first));
        const int at = line.begin(warp);
        first_pair = first;
        left = line.begin(warp + 1) - at;
        pair = at / share.units;
        unit = at % share.units;
    }
    // Whether it had the last of a pair.
    __device__ __forceinline__ bool step(const Share &share) {
        --left;
        const bool ends = ++unit == share.units;
        pair += ends;
        unit = ends ? 0 : unit;
        return ends || left == 0;
    }
    __device__ __forceinline__ int slot() const { return pair + threadIdx.x / 32; }
    __device__ __forceinline__ bool is_done() const { return left == 0; }
};

__device__ __forceinline__ void aim(const Problem &p, const Share &share, const Way &way,
                                    const Place &at, Unit &unit) {
    const int row = (way.first_pair + way.pair) * PAIR_ROWS;
    unit.aim(p, row + at.quad, share.first_unit + way.unit);
}

__device__ __forceinline__ void fill(const Problem &p, const Share &share, const Way &way,
                                     const Place &at, Unit &unit) {
    aim(p, share, way, at, unit);
#pragma unroll
    for (int span = 0; span < SPANS; ++span)
        unit.load(p, span, at.t);
    unit.load_blocks(p);
}

// A unit of which the registers are full; then they are filled from where `unit` aims.
__device__ __forceinline__ void add_unit(const Problem &p, const Constants &one,
                                         const Vectors &vectors, const Place &at, int x_unit,
                                         Unit &unit, Totals &total) {
    u32 minima[SPANS][ROWS];
    Totals products;
    clear(products);
#pragma unroll
    for (int span = 0; span < SPANS; ++span)
        add_span(p, one, at, span, x_unit, unit, minima[span], products);
    add_scaled(vectors, at, x_unit, unit.blocks, minima, products, total);
    unit.load_blocks(p);
}

// Four rows' sums of a token, of a pair of the round.
struct Four {
    int pair, token, row;
    __device__ __forceinline__ explicit Four(int index)
        : pair(index / (PAIR_ROWS / 4) / TOKENS), token(index / (PAIR_ROWS / 4) % TOKENS),
          row(index % (PAIR_ROWS / 4) * 4) {}
};

__device__ __forceinline__ void store(const Problem &p, int token, int first_row,
                                      const float (&sum)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int row = first_row + k;
        if (row >= p.num_rows || token >= p.num_tokens)
            break;
        const i64 at = (i64)token * p.y_stride + row;
        float value = sum[k];
        if (p.has_bias)
            value += bfloat16_to_float(p.bias[row]);
        if (p.has_residual)
            value += bfloat16_to_float(p.residual[at]);
        p.y[at] = float_to_bfloat16(value);
    }
}

// The parts of a round, all together, by the whole cluster: each thread so many fours at once, and
// so many parts of each. All are asked for before one is there.
template <int MANY, int COUNT>
__device__ __forceinline__ void add_up(const Problem &p, const Share &share, int rank, int pair,
                                       const float *slots) {
    const int step = CLUSTER * THREADS, pairs = share.pairs_from(pair);
    const int items = pairs * TOKENS * (PAIR_ROWS / 4);
    for (int i = rank * THREADS + threadIdx.x; i < items; i += MANY * step) {
        float sums[MANY][4] = {};
        int first[MANY][CLUSTER], last[MANY][CLUSTER], most = 0;
#pragma unroll
        for (int part = 0; part < MANY * CLUSTER; ++part) {
            const int m = part / CLUSTER, of = part % CLUSTER;
            const Four four(min(i + m * step, items - 1));
            const int units = Share::first_unit_of(p, of + 1) - Share::first_unit_of(p, of);
            const Line line(units, pairs);
            first[m][of] = line.first_slot(four.pair);
            last[m][of] = line.last_slot(four.pair);
            most = max(most, last[m][of] - first[m][of]);
        }
        for (int from = 0; from <= most; from += COUNT) {
            float4 parts[MANY][CLUSTER][COUNT];
#pragma unroll
            for (int part = 0; part < MANY * CLUSTER * COUNT; ++part) {
                const int m = part / CLUSTER / COUNT, of = part / COUNT % CLUSTER;
                const Four four(min(i + m * step, items - 1));
                const int slot = min(first[m][of] + from + part % COUNT, last[m][of]);
                parts[m][of][part % COUNT] = load_of_block<CLUSTER>(
                    (const float4 *)(slots + slot * SLOT + four.token * SLOT_LINE + four.row), of);
            }
#pragma unroll
            for (int part = 0; part < MANY * CLUSTER * COUNT; ++part) {
                const int m = part / CLUSTER / COUNT, of = part / COUNT % CLUSTER;
                if (first[m][of] + from + part % COUNT <= last[m][of]) {
                    const float4 &one = parts[m][of][part % COUNT];
                    sums[m][0] += one.x;
                    sums[m][1] += one.y;
                    sums[m][2] += one.z;
                    sums[m][3] += one.w;
                }
            }
        }
#pragma unroll
        for (int m = 0; m < MANY; ++m) {
            const Four four(i + m * step);
            if (i + m * step < items)
                store(p, four.token, (pair + four.pair) * PAIR_ROWS + four.row, sums[m]);
        }
    }
}

__device__ __forceinline__ void work(const Problem &p, int round) {
    char *shared = shared_memory();
    const int rank = rank_in_cluster<CLUSTER>();
    const Share share(p, rank, round);
    float *slots = (float *)(shared + Share::most_units(p) * X_UNIT);
    const Vectors vectors = {shared, (u64 *)(slots + (round + WARPS - 1) * SLOT)};
    const Place at(vectors);
    const Constants one(p.num_tokens);
    Way way;
    way.begin(share, share.first_pair);
    Unit unit;
    fill(p, share, way, at, unit);
    vectors.begin(share.units);
    if (EARLY) {
        let_next_kernel_begin();
        wait_for_kernels_before();
    }
    vectors.fill(p, share.first_unit, share.units);
    Totals total;
    clear(total);
#pragma unroll 1
    for (int pair = share.first_pair; pair < share.end_pair; pair += share.round) {
        // After the last round, whatever there is.
        const int next = min(pair + share.round, share.end_pair - 1);
        if (way.is_done()) {
            way.begin(share, next);
            fill(p, share, way, at, unit);
        } else {
#pragma unroll 1
            for (bool is_done = false; !is_done;) {
                const int slot = way.slot(), x_unit = way.unit;
                const bool leaves = way.step(share);
                is_done = way.is_done();
                if (is_done)
                    way.begin(share, next);
                aim(p, share, way, at, unit);
                vectors.wait(x_unit);
                add_unit(p, one, vectors, at, x_unit, unit, total);
                if (leaves)
                    leave(at, slots + slot * SLOT, total);
            }
        }
        meet_cluster<CLUSTER>();
        if (share.pairs_from(pair) >= WARPS)
            add_up<(CLUSTER > 4 ? 1 : 3), 2>(p, share, rank, pair, slots);
        else
            add_up<1, 4>(p, share, rank, pair, slots);
        meet_cluster_again<CLUSTER>();
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
    quant_split(const char *x, u16 *y, const u16 *residual, const u16 *bias, const char *codes,
                const char *high, const char *scales, const char *blocks, int num_tokens,
                int num_rows, int num_units, int y_stride, int has_bias,
                int has_residual, int round) {
    work({x, y, residual, bias, codes, high, scales, blocks, num_tokens, num_rows, num_units,
          y_stride, has_bias, has_residual},
         round);
}
