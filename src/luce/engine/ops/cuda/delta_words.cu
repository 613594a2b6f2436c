// One token of a gated DeltaNet layer: convolution and recurrence. Results are left as words for the
// product behind it, times the norm's weight and the gate, but not divided by their head's root mean
// square; sums of squares beside them.
//
// A block of threads has 16 columns of a value head's state. Each thread has four of them and every
// 32nd key. S' = g S + k e^T with e = beta (v - g S^T k), so what the query finds, S'^T q, is
// g S^T q + (k q) e: one sum over keys for both.

#define COLUMNS 16
#define THREADS 128
#define WARPS_OF_BLOCK (THREADS / 32)
#define KEYS (DK / 32)
#define PARTS (DV / COLUMNS)
#define TAPS (WIDTH - 1)
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
#define GROUPS (HV * DV / 32)
#define WORDS 20

__device__ __forceinline__ float wide(u16 bits) { return bfloat16_to_float(bits); }
__device__ __forceinline__ float rounded(float x) { return wide(float_to_bfloat16(x)); }
__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal(1.0f + exp2_of(x * -LOG2_E));
}

// A channel of the convolution.
struct Channel {
    u16 old[TAPS];
    float factors[WIDTH];

    __device__ __forceinline__ Channel(const u16 *line, const u16 *taps, int channel) {
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            old[tap] = line[tap * CHANNELS + channel];
#pragma unroll
        for (int tap = 0; tap < WIDTH; ++tap)
            factors[tap] = wide(taps[channel * WIDTH + tap]);
    }
    __device__ __forceinline__ float convolved(u16 newest) const {
        float total = wide(newest) * factors[TAPS];
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            total = fmaf(wide(old[tap]), factors[tap], total);
        return total * sigmoid(total);
    }
};

__device__ __forceinline__ void move_on(u16 *line, int channel, u16 newest) {
    u16 kept[WIDTH];
#pragma unroll
    for (int tap = 1; tap < TAPS; ++tap)
        kept[tap - 1] = line[tap * CHANNELS + channel];
    kept[TAPS - 1] = newest;
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
        line[tap * CHANNELS + channel] = kept[tap];
}

template <int N> __device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
    for (int bit = 16; bit >= 32 / N; bit /= 2)
        value += of_lane_across(value, bit);
    return value;
}

// What the threads of a block tell each other.
struct Shared {
    float query[DK], key[DK], value[COLUMNS];
    float lengths[WARPS_OF_BLOCK][2];
    // By warp: of each column what key and query find.
    float found[WARPS_OF_BLOCK][2][COLUMNS], both[WARPS_OF_BLOCK];
};

// Sixteen columns from `first` on, one in each lane of half a warp.
__device__ __forceinline__ void leave(int *words, float gated, int first, int lane) {
    float largest = fabsf(gated);
#pragma unroll
    for (int bit = 8; bit > 0; bit /= 2)
        largest = fmaxf(largest, of_lane_across(largest, bit));
    const int code = (int)rintf(gated * (largest > 0.0f ? 32767.0f * reciprocal(largest) : 0.0f));
    int total = code;
#pragma unroll
    for (int bit = 8; bit > 0; bit /= 2)
        total += (int)of_lane_across((float)total, bit);
    if (lane >= COLUMNS)
        return;
    const int part = first / COLUMNS % 2, column = lane % 8;
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

extern "C" __global__ void __launch_bounds__(THREADS)
    delta_words(const u16 *projected, const u16 *taps, u16 *conv, const float *decay,
                const float *dt_bias, float *states, const u16 *norm, const int *rows,
                int *arrivals, int *words, float *squares, int token_stride, int conv_stride,
                int state_stride, int scale_bits, int key_eps_bits) {
    Shared &shared = *(Shared *)shared_memory();
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int part = blockIdx.x % PARTS, head = blockIdx.x / PARTS, token = blockIdx.y;
    const int key_head = TILED ? head % HK : head / (HV / HK);
    const int first = part * COLUMNS, slot = rows[token];
    u16 *line = conv + (i64)slot * conv_stride;
    float *state = states + (i64)slot * state_stride + head * (DK * DV) + t / 4 * DV + first + t % 4 * 4;
    // States are older than some operation that no kernel overtakes: they may be read before the
    // kernels ahead are done.
    float4 cells[KEYS];
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        cells[i] = *(const float4 *)(state + i * 32 * DV);
    const int query_channel = key_head * DK + t, key_channel = HK * DK + query_channel;
    const int value_channel = 2 * HK * DK + head * DV + first + lane % COLUMNS;
    const Channel of_query(line, taps, query_channel), of_key(line, taps, key_channel);
    const Channel of_value(line, taps, value_channel);
    const float speed = decay[head], bias = dt_bias[head];
    const float weight = wide(norm[first + lane % COLUMNS]);
    let_next_kernel_begin();
    wait_for_kernels_before();
    const u16 *row = projected + (i64)token * token_stride, *gates = row + CHANNELS + HV * DV + head;
    const u16 newest = __ldcg(row + value_channel);
    const float query = of_query.convolved(__ldcg(row + query_channel));
    const float key = of_key.convolved(__ldcg(row + key_channel));
    const float gate = wide(__ldcg(row + CHANNELS + head * DV + first + lane % COLUMNS));
    const float beta = rounded(sigmoid(wide(__ldcg(gates))));
    const float x = wide(__ldcg(gates + HV)) + bias;
    const float soft = x > 20.0f ? x : LN_2 * log2_of(1.0f + exp2_of(fminf(x, 20.0f) * LOG2_E));
    const float g = exp2_of(speed * soft * LOG2_E);
    shared.query[t] = query;
    shared.key[t] = key;
    const float query_square = sum_of_lanes<32>(query * query);
    const float key_square = sum_of_lanes<32>(key * key);
    if (lane == 0) {
        shared.lengths[warp][0] = query_square;
        shared.lengths[warp][1] = key_square;
    }
    if (warp == 0 && lane < COLUMNS)
        shared.value[lane] = rounded(of_value.convolved(newest));
    __syncthreads();
    // All threads have read the old inputs of the query and the key.
    int *arrival = arrivals + token * HK + key_head;
    const int before = warp == WARPS_OF_BLOCK - 1 ? arrive_once(arrival) : 0;
    const float eps = __int_as_float(key_eps_bits);
    float lengths[2] = {eps, eps};
#pragma unroll
    for (int i = 0; i < WARPS_OF_BLOCK; ++i) {
        lengths[0] += shared.lengths[i][0];
        lengths[1] += shared.lengths[i][1];
    }
    const float query_scale = inverse_root(lengths[0]) * __int_as_float(scale_bits);
    const float key_scale = inverse_root(lengths[1]);
    float keys[KEYS], sums[8] = {0, 0, 0, 0, 0, 0, 0, 0}, both = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const float q = rounded(shared.query[i * 32 + t / 4] * query_scale);
        keys[i] = rounded(shared.key[i * 32 + t / 4] * key_scale);
        both = fmaf(q, keys[i], both);
        sums[0] = fmaf(keys[i], cells[i].x, sums[0]);
        sums[1] = fmaf(keys[i], cells[i].y, sums[1]);
        sums[2] = fmaf(keys[i], cells[i].z, sums[2]);
        sums[3] = fmaf(keys[i], cells[i].w, sums[3]);
        sums[4] = fmaf(q, cells[i].x, sums[4]);
        sums[5] = fmaf(q, cells[i].y, sums[5]);
        sums[6] = fmaf(q, cells[i].z, sums[6]);
        sums[7] = fmaf(q, cells[i].w, sums[7]);
    }
    both = sum_of_lanes<8>(both);
    // Halves of the eight sums, of the lanes of the same columns: each keeps one.
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
        const bool upper = lane & (count * 4);
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float kept = upper ? sums[i + count] : sums[i];
            const float given = upper ? sums[i] : sums[i + count];
            sums[i] = kept + of_lane_across(given, count * 4);
        }
    }
    shared.found[warp][lane / 16][lane % 4 * 4 + lane / 4 % 4] = sums[0];
    if (lane == 0)
        shared.both[warp] = both;
    __syncthreads();
    float found[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < WARPS_OF_BLOCK; ++i) {
        const float4 more = *(const float4 *)&shared.found[i][0][t % 4 * 4];
        found[0] += more.x;
        found[1] += more.y;
        found[2] += more.z;
        found[3] += more.w;
    }
    const float4 value = *(const float4 *)&shared.value[t % 4 * 4];
    const float error[4] = {beta * (value.x - g * found[0]), beta * (value.y - g * found[1]),
                            beta * (value.z - g * found[2]), beta * (value.w - g * found[3])};
    if (warp == 0) {
        // A column in each lane, twice.
        const int column = lane % COLUMNS;
        float by_key = 0.0f, by_query = 0.0f, products = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS_OF_BLOCK; ++i) {
            by_key += shared.found[i][0][column];
            by_query += shared.found[i][1][column];
            products += shared.both[i];
        }
        const float mine = beta * (shared.value[column] - g * by_key);
        const float result = fmaf(products, mine, g * by_query);
        leave(words + token * (WORDS * GROUPS), result * weight * (gate * sigmoid(gate)),
              head * DV + first, lane);
        float square = result * result;
#pragma unroll
        for (int bit = 8; bit > 0; bit /= 2)
            square += of_lane_across(square, bit);
        if (lane == 0)
            squares[(token * HV + head) * PARTS + part] = square;
        if (lane < COLUMNS)
            move_on(line, value_channel, newest);
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const float4 next = {fmaf(keys[i], error[0], g * cells[i].x),
                             fmaf(keys[i], error[1], g * cells[i].y),
                             fmaf(keys[i], error[2], g * cells[i].z),
                             fmaf(keys[i], error[3], g * cells[i].w)};
        *(float4 *)(state + i * 32 * DV) = next;
    }
    if (warp == WARPS_OF_BLOCK - 1 && of_first_lane(before) == PARTS * (HV / HK) - 1) {
        // The last block of threads that read them moves them on.
        if (lane == 0)
            *arrival = 0;
        for (int i = lane; i < 2 * DK; i += 32) {
            const int channel = (i < DK ? 0 : HK * DK - DK) + key_head * DK + i;
            move_on(line, channel, __ldcg(row + channel));
        }
    }
}
