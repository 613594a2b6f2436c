// One token of a gated DeltaNet layer: convolution and recurrence. Results are left as words for the
// product behind it, times the norm's weight and the gate, but not divided by their head's root mean
// square; sums of squares beside them.
//
// A block of threads has 16 columns of a value head's state: of four warps each thread four columns
// of four keys, and a fifth warp the columns' values, gates and words. With q and k as the
// convolution leaves them, of lengths |q| and |k|, S' = g S + (k / |k|) e^T where
// e = beta (v - g S^T k / |k|), so what the query finds is (g S^T q + (k q) e / |k|) / |q|: sums over
// the old state alone, all made at once.
//
// Value heads that share a key head convolve its channels each for itself; the last block of threads
// of a key head moves the convolution's inputs on. A block counts when its threads have made numbers
// of the old ones, so no read of them can still be under way, and nothing has to be fenced.

#define COLUMNS 16
#define KEYS 4
#define QUADS (COLUMNS / 4)
#define CELL_THREADS (DK / KEYS * QUADS)
#define CELL_WARPS (CELL_THREADS / 32)
#define THREADS (CELL_THREADS + 32)
#define PARTS (DV / COLUMNS)
#define MEMBERS (PARTS * (HV / HK))
#define TAPS (WIDTH - 1)
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
#define GROUPS (HV * DV / 32)
#define WORDS 20
// Barriers: of all threads, of those with cells, and of all once more.
#define ALL 1
#define CELLS 2
#define END 3

__device__ __forceinline__ float wide(u16 bits) { return bfloat16_to_float(bits); }
__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal_of(1.0f + exp2_of(x * -LOG2_E));
}

struct Layer {
    const u16 *projected, *taps;
    u16 *conv;
    const float *decay, *dt_bias;
    float *states;
    const u16 *norm;
    u32 *arrivals;
    int *words;
    float *squares;
    int token_stride, conv_stride, state_stride;
    float scale, key_eps;
};

// Where a block of threads is, and what it reads of the token.
struct Place {
    int head, key_head, first, token;
    const u16 *row;
    u16 *line;
    float *state;

    __device__ __forceinline__ Place(const Layer &layer, int slot)
        : head(blockIdx.x / PARTS), key_head(TILED ? head % HK : head / (HV / HK)),
          first(blockIdx.x % PARTS * COLUMNS), token(blockIdx.y),
          row(layer.projected + (i64)token * layer.token_stride),
          line(layer.conv + (i64)slot * layer.conv_stride),
          state(layer.states + (i64)slot * layer.state_stride) {}
};

// A channel of the convolution.
struct Channel {
    u16 old[TAPS];
    float past, factor;

    __device__ __forceinline__ Channel(const u16 *line, const u16 *taps, int channel) {
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            old[tap] = line[tap * CHANNELS + channel];
        past = 0.0f;
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            past = fmaf(wide(old[tap]), wide(taps[channel * WIDTH + tap]), past);
        factor = wide(taps[channel * WIDTH + TAPS]);
    }
    __device__ __forceinline__ float convolved(u16 newest) const {
        const float total = fmaf(wide(newest), factor, past);
        return total * sigmoid(total);
    }
    __device__ __forceinline__ void move_on(u16 *line, int channel, u16 newest) const {
#pragma unroll
        for (int tap = 1; tap < TAPS; ++tap)
            line[(tap - 1) * CHANNELS + channel] = old[tap];
        line[(TAPS - 1) * CHANNELS + channel] = newest;
    }
};

// What the threads of a block tell each other.
struct Shared {
    float query[DK], key[DK];
    // By warp: of each column what key and query find; k k, q q and k q.
    float found[CELL_WARPS][2][COLUMNS], products[CELL_WARPS][4];
    float value[COLUMNS], beta, decay;
    int is_last;
};

// What is the same for all columns: 1 / |k|, 1 / |q| times the scale of queries, and k q.
struct Lengths {
    float key, query, both;

    __device__ __forceinline__ Lengths(const Shared &shared, const Layer &layer) {
        float4 sums = *(const float4 *)shared.products[0];
#pragma unroll
        for (int i = 1; i < CELL_WARPS; ++i) {
            const float4 more = *(const float4 *)shared.products[i];
            sums.x += more.x;
            sums.y += more.y;
            sums.z += more.z;
        }
        key = inverse_root(sums.x + layer.key_eps);
        query = inverse_root(sums.y + layer.key_eps) * layer.scale;
        both = sums.z;
    }
};

// A warp's sums of eight numbers and one more over the lanes that have the same columns: of the eight
// each lane keeps one.
__device__ __forceinline__ void sum_over_keys(float (&sums)[8], float &product) {
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
        const bool upper = threadIdx.x & (count * QUADS);
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float kept = upper ? sums[i + count] : sums[i];
            const float given = upper ? sums[i] : sums[i + count];
            sums[i] = kept + of_lane_across(given, count * QUADS);
        }
        product += of_lane_across(product, count * QUADS);
    }
}

__device__ __forceinline__ float4 sum_of_warps(const float (*found)[2][COLUMNS], int quad) {
    float4 total = *(const float4 *)&found[0][0][quad * 4];
#pragma unroll
    for (int i = 1; i < CELL_WARPS; ++i) {
        const float4 more = *(const float4 *)&found[i][0][quad * 4];
        total.x += more.x;
        total.y += more.y;
        total.z += more.z;
        total.w += more.w;
    }
    return total;
}

// Of a thread of the first warps. States are older than some operation that no kernel overtakes: they
// may be read before the kernels ahead are done.
struct Cells {
    int quad, keys, query_channel, key_channel;
    float *state;
    float4 cells[KEYS];
    Channel of_query, of_key;

    __device__ __forceinline__ Cells(const Layer &layer, const Place &at)
        : quad(threadIdx.x % QUADS), keys(threadIdx.x / QUADS * KEYS),
          query_channel(at.key_head * DK + threadIdx.x), key_channel(HK * DK + query_channel),
          state(at.state + at.head * (DK * DV) + keys * DV + at.first + quad * 4),
          of_query(at.line, layer.taps, query_channel), of_key(at.line, layer.taps, key_channel) {
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            cells[i] = *(const float4 *)(state + i * DV);
    }
    // What key and query find in the old state, and products of both.
    __device__ __forceinline__ void look_up(const float (&q)[KEYS], const float (&k)[KEYS],
                                            Shared &shared) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0}, product = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            // Of the lanes with these keys one has k k, one q q, the others k q.
            product = fmaf(quad == 1 ? q[i] : k[i], quad == 0 ? k[i] : q[i], product);
            sums[0] = fmaf(k[i], cells[i].x, sums[0]);
            sums[1] = fmaf(k[i], cells[i].y, sums[1]);
            sums[2] = fmaf(k[i], cells[i].z, sums[2]);
            sums[3] = fmaf(k[i], cells[i].w, sums[3]);
            sums[4] = fmaf(q[i], cells[i].x, sums[4]);
            sums[5] = fmaf(q[i], cells[i].y, sums[5]);
            sums[6] = fmaf(q[i], cells[i].z, sums[6]);
            sums[7] = fmaf(q[i], cells[i].w, sums[7]);
        }
        sum_over_keys(sums, product);
        shared.found[warp][lane / 16][quad * 4 + lane / 4 % 4] = sums[0];
        if (lane < 4)
            shared.products[warp][lane] = product;
    }
    __device__ __forceinline__ void store(const float (&k)[KEYS], const Lengths &lengths,
                                          const Shared &shared) const {
        const float4 found = sum_of_warps(shared.found, quad);
        const float4 value = *(const float4 *)&shared.value[quad * 4];
        const float g = shared.decay, less = g * lengths.key, gain = shared.beta * lengths.key;
        const float error[4] = {gain * (value.x - less * found.x), gain * (value.y - less * found.y),
                                gain * (value.z - less * found.z), gain * (value.w - less * found.w)};
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const float4 next = {fmaf(k[i], error[0], g * cells[i].x),
                                 fmaf(k[i], error[1], g * cells[i].y),
                                 fmaf(k[i], error[2], g * cells[i].z),
                                 fmaf(k[i], error[3], g * cells[i].w)};
            *(float4 *)(state + i * DV) = next;
        }
    }
    __device__ __forceinline__ void token(const Layer &layer, const Place &at, Shared &shared) const {
        const u16 new_query = __ldcg(at.row + query_channel);
        const u16 new_key = __ldcg(at.row + key_channel);
        shared.query[threadIdx.x] = of_query.convolved(new_query);
        shared.key[threadIdx.x] = of_key.convolved(new_key);
        wait_at<CELLS, CELL_THREADS>();
        u32 before = 0;
        if (threadIdx.x == 0)
            before = count_around(layer.arrivals + at.token * HK + at.key_head, MEMBERS);
        const float4 queries = *(const float4 *)&shared.query[keys];
        const float4 own_keys = *(const float4 *)&shared.key[keys];
        const float q[KEYS] = {queries.x, queries.y, queries.z, queries.w};
        const float k[KEYS] = {own_keys.x, own_keys.y, own_keys.z, own_keys.w};
        look_up(q, k, shared);
        wait_at<ALL, THREADS>();
        store(k, Lengths(shared, layer), shared);
        if (threadIdx.x == 0)
            shared.is_last = before == MEMBERS - 1;
        wait_at<END, THREADS>();
        if (shared.is_last) {
            of_query.move_on(at.line, query_channel, new_query);
            of_key.move_on(at.line, key_channel, new_key);
        }
    }
};

// Sixteen columns from `first` on, one in each lane of half a warp, and again in the other half.
__device__ __forceinline__ void leave(int *words, float gated, int first) {
    const int lane = threadIdx.x % 32, part = first / COLUMNS % 2, column = lane % 8;
    const float largest = __int_as_float(most_of_warp(__float_as_int(fabsf(gated))));
    const int code =
        __float2int_rn(gated * (largest > 0.0f ? 32767.0f * reciprocal_of(largest) : 0.0f));
    const int total = sum_of_warp(code) / 2;
    if (lane >= COLUMNS)
        return;
    words += first / 32;
    // Of column 4a + 2b + c of eight: pairs over a, or over b for tables.
    const int word = TABLE ? column % 2 * 2 + column / 4 : column % 4;
    const int half = TABLE ? column / 2 % 2 : column / 4;
    short *halves = (short *)(words + (part * 8 + lane / 8 * 4 + word) * GROUPS);
    halves[half] = (short)code;
    if (lane == 0) {
        words[(16 + part) * GROUPS] = __float_as_int(largest * (1.0f / 32767.0f));
        words[(18 + part) * GROUPS] = total;
    }
}

// Of a lane of the last warp, which has a column; two lanes have the same.
struct Column {
    int own, channel;
    float speed, bias, weight;
    Channel of_value;

    __device__ __forceinline__ Column(const Layer &layer, const Place &at)
        : own(at.head * DV + at.first + threadIdx.x % COLUMNS), channel(2 * HK * DK + own),
          speed(layer.decay[at.head]), bias(layer.dt_bias[at.head]),
          weight(wide(layer.norm[at.first + threadIdx.x % COLUMNS])),
          of_value(at.line, layer.taps, channel) {}
    // What the columns leave: the result, for words and for the mean of squares.
    __device__ __forceinline__ void finish(const Layer &layer, const Place &at, float result,
                                           float factor) const {
        leave(layer.words + at.token * (WORDS * GROUPS), result * factor, at.head * DV + at.first);
        float square = result * result;
#pragma unroll
        for (int bit = COLUMNS / 2; bit > 0; bit /= 2)
            square += of_lane_across(square, bit);
        if (threadIdx.x % 32 == 0)
            layer.squares[at.token * (HV * PARTS) + blockIdx.x] = square;
    }
    __device__ __forceinline__ void token(const Layer &layer, const Place &at, Shared &shared) const {
        const int lane = threadIdx.x % 32, column = lane % COLUMNS;
        const u16 *gates = at.row + CHANNELS + HV * DV + at.head;
        const u16 newest = __ldcg(at.row + channel), z = __ldcg(at.row + CHANNELS + own);
        const u16 logit = __ldcg(gates), step = __ldcg(gates + HV);
        const float beta = wide(float_to_bfloat16(sigmoid(wide(logit))));
        const float x = wide(step) + bias;
        const float soft = x > 20.0f ? x : LN_2 * log2_of(1.0f + exp2_of(fminf(x, 20.0f) * LOG2_E));
        const float g = exp2_of(speed * soft * LOG2_E), value = of_value.convolved(newest);
        const float gate = wide(z), factor = weight * gate * sigmoid(gate);
        if (lane < COLUMNS)
            shared.value[lane] = value;
        if (lane == 0) {
            shared.beta = beta;
            shared.decay = g;
        }
        wait_at<ALL, THREADS>();
        float by_key = 0.0f, by_query = 0.0f;
#pragma unroll
        for (int i = 0; i < CELL_WARPS; ++i) {
            by_key += shared.found[i][0][column];
            by_query += shared.found[i][1][column];
        }
        const Lengths lengths(shared, layer);
        const float error = beta * lengths.key * (value - g * lengths.key * by_key);
        const float result = lengths.query * fmaf(lengths.both, error, g * by_query);
        finish(layer, at, result, factor);
        wait_at<END, THREADS>();
        if (lane < COLUMNS)
            of_value.move_on(at.line, channel, newest);
    }
};

template <class Part>
__device__ __forceinline__ void work(const Layer &layer, const Place &at, Shared &shared) {
    const Part part(layer, at);
    let_next_kernel_begin();
    wait_for_kernels_before();
    part.token(layer, at, shared);
}

// Few enough registers for two blocks beside the programs of a product of a row ahead.
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    delta_words(const u16 *projected, const u16 *taps, u16 *conv, const float *decay,
                const float *dt_bias, float *states, const u16 *norm, const int *rows, u32 *arrivals,
                int *words, float *squares, int token_stride, int conv_stride, int state_stride,
                int scale_bits, int key_eps_bits) {
    const Layer layer = {projected, taps, conv, decay, dt_bias, states, norm, arrivals, words, squares,
                         token_stride, conv_stride, state_stride, __int_as_float(scale_bits),
                         __int_as_float(key_eps_bits)};
    Shared &shared = *(Shared *)shared_memory();
    const Place at(layer, rows[blockIdx.y]);
    if (threadIdx.x < CELL_THREADS)
        work<Cells>(layer, at, shared);
    else
        work<Column>(layer, at, shared);
}
