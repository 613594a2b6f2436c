// One token each of some sequences in a gated DeltaNet layer: convolution, recurrence, norm and gate.
//
// Blocks of threads go through units, a value head of a sequence each, whose states are copied to
// shared memory STAGES units ahead, and the convolution's old inputs one more: what is asked for
// comes behind all that others asked for. A thread has four columns and KEYS keys of a state, copied
// by itself, so it waits for no other until sums over keys. S' = g S + k e^T with e = beta (v - g S^T k),
// so what the query finds, S'^T q, is g S^T q + (k q) e: one sum over keys for both.
//
// A unit's query, key and value are made while the unit before it is worked on. Value heads that
// share a key head convolve its channels each for itself; the last to have read the old inputs of
// those moves them on.

#define THREADS (32 * WARPS)
#define KEYS (DK / WARPS)
#define TAPS 3
#define PAIRS ((2 * DK + DV) / 2)
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

__device__ __forceinline__ float wide(u32 bits) { return bfloat16_to_float((u16)bits); }
__device__ __forceinline__ float rounded(float x) { return wide(float_to_bfloat16(x)); }
__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal_of(1.0f + exp2_of(x * -LOG2_E));
}
__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2)
        value += of_lane_across(value, bit);
    return value;
}

struct Layer {
    const u16 *projected, *taps;
    u16 *conv;
    float *states;
    int token_stride, conv_stride, state_stride;
};

struct Shared {
    // By warp: of each column what key and query find, of its keys.
    float found[WARPS][2][DV];
    float query_and_key[2][2 * DK], value[2][DV];
    // Of places of units that come, two channels a thread: old inputs, and factors of all.
    uint4 factors[STAGES + 1][PAIRS];
    u32 old[STAGES + 1][TAPS][PAIRS];
    float lengths[2 * DK / 64], both[WARPS], decay[HV], bias[HV];
    int is_last, rows[MOST_LANES];
};

struct Unit {
    int token, head, slot;

    __device__ __forceinline__ Unit(int index, const Shared &shared)
        : token(index / HV), head(index % HV), slot(shared.rows[index / HV]) {}
    __device__ __forceinline__ int key_head() const {
        return TILED ? head % HK : head / (HV / HK);
    }
    // This thread's part of the state.
    __device__ __forceinline__ float *state(const Layer &layer) const {
        return layer.states + (i64)slot * layer.state_stride + head * (DK * DV) +
               threadIdx.x / 32 * (KEYS * DV) + threadIdx.x % 32 * 4;
    }
    // The first of its two channels: of the query, of the key, of the value.
    __device__ __forceinline__ int channel() const {
        const int t = threadIdx.x;
        return t < DK ? t / (DK / 2) * (HK * DK) + key_head() * DK + t % (DK / 2) * 2
                      : 2 * HK * DK + head * DV + (t - DK) * 2;
    }
    __device__ __forceinline__ u16 *line(const Layer &layer) const {
        return layer.conv + (i64)slot * layer.conv_stride + channel();
    }
};

// What a thread reads of a unit that kernels ahead wrote.
struct Inputs {
    u32 newest;
    u16 beta, step;
    uint2 gate;

    __device__ __forceinline__ void load(const Layer &layer, const Unit &unit) {
        const u16 *row = layer.projected + (i64)unit.token * layer.token_stride;
        if (threadIdx.x < PAIRS)
            newest = __ldcg((const u32 *)(row + unit.channel()));
        row += CHANNELS;
        gate = __ldcg((const uint2 *)(row + unit.head * DV + threadIdx.x % 32 * 4));
        beta = __ldcg(row + HV * DV + unit.head);
        step = __ldcg(row + HV * DV + HV + unit.head);
    }
};

// What a thread has made of it.
struct Token {
    u32 kept[TAPS];
    float numbers[2], beta, decay;
    uint2 gate;

    // The first half, after which the threads meet.
    __device__ __forceinline__ void begin(const Inputs &from, const Layer &layer, const Unit &unit,
                                          int place, float *value, Shared &shared) {
        const int t = threadIdx.x;
        gate = from.gate;
        beta = rounded(sigmoid(wide(from.beta)));
        const float x = wide(from.step) + shared.bias[unit.head];
        const float soft = x > 20.0f ? x : LN_2 * log2_of(1.0f + exp2_of(fminf(x, 20.0f) * LOG2_E));
        decay = exp2_of(shared.decay[unit.head] * soft * LOG2_E);
        if (t >= PAIRS)
            return;
        const uint4 factors = shared.factors[place][t];
        const u32 oldest = shared.old[place][0][t];
        kept[0] = shared.old[place][1][t];
        kept[1] = shared.old[place][2][t];
        kept[2] = from.newest;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 low = i ? factors.z : factors.x, high = i ? factors.w : factors.y;
            const int shift = i * 16;
            float total = wide(kept[2] >> shift) * wide(high >> 16);
            total = fmaf(wide(oldest >> shift), wide(low), total);
            total = fmaf(wide(kept[0] >> shift), wide(low >> 16), total);
            total = fmaf(wide(kept[1] >> shift), wide(high), total);
            numbers[i] = total * sigmoid(total);
        }
        if (t >= DK) {
            *(float2 *)&value[(t - DK) * 2] = make_float2(rounded(numbers[0]), rounded(numbers[1]));
            move_on(layer, unit);
            return;
        }
        const float square = sum_of_warp(numbers[0] * numbers[0] + numbers[1] * numbers[1]);
        if (t % 32 == 0)
            shared.lengths[t / 32] = square;
    }
    // The second half.
    __device__ __forceinline__ void end(float *query_and_key, float scale, float eps,
                                        const Shared &shared) const {
        const int t = threadIdx.x;
        if (t >= DK)
            return;
        const bool is_key = t >= DK / 2;
        float square = eps;
#pragma unroll
        for (int i = 0; i < DK / 64; ++i)
            square += shared.lengths[(is_key ? DK / 64 : 0) + i];
        const float factor = inverse_root(square) * (is_key ? 1.0f : scale);
        *(float2 *)&query_and_key[t * 2] =
            make_float2(rounded(numbers[0] * factor), rounded(numbers[1] * factor));
    }
    __device__ __forceinline__ void move_on(const Layer &layer, const Unit &unit) const {
        u16 *line = unit.line(layer);
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap)
            *(u32 *)(line + tap * CHANNELS) = kept[tap];
    }
};

__device__ __forceinline__ float4 sum_of_warps(const float (*found)[2][DV], int which) {
    float4 total = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        const float4 more = *(const float4 *)&found[i][which][threadIdx.x % 32 * 4];
        total.x += more.x;
        total.y += more.y;
        total.z += more.z;
        total.w += more.w;
    }
    return total;
}

// A warp: norm and gate of a head's results, four a lane.
__device__ __forceinline__ uint2 normed_and_gated(const float (&result)[4], uint2 weight, uint2 gate,
                                                  float eps) {
    const u32 weights[2] = {weight.x, weight.y}, gates[2] = {gate.x, gate.y};
    float square = 0.0f, found[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        found[i] = rounded(result[i]);
        square += found[i] * found[i];
    }
    const float inverse = inverse_root(sum_of_warp(square) * (1.0f / DV) + eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // Rounded before the weight, as the reference rounds.
        const float normal = rounded(found[i] * inverse);
        const float z = wide(gates[i / 2] >> i % 2 * 16);
        found[i] = rounded(normal * wide(weights[i / 2] >> i % 2 * 16)) * z * sigmoid(z);
    }
    return make_uint2(pack_bfloat16(found[0], found[1]), pack_bfloat16(found[2], found[3]));
}

// Begin to copy what this thread will want of a unit's channels.
__device__ __forceinline__ void request_inputs(const Layer &layer, int index, int num_units, int place,
                                               Shared &shared) {
    const int t = threadIdx.x;
    if (index >= num_units || t >= PAIRS)
        return;
    const Unit unit(index, shared);
    const u16 *line = unit.line(layer);
    copy_async<16>((char *)&shared.factors[place][t],
                   (const char *)(layer.taps + unit.channel() * (TAPS + 1)), 16);
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap)
        copy_async<4>((char *)&shared.old[place][tap][t], (const char *)(line + tap * CHANNELS), 4);
}

// The same of its state.
__device__ __forceinline__ void request_state(const Layer &layer, int index, int num_units,
                                              char *place, const Shared &shared) {
    if (index >= num_units)
        return;
    const char *from = (const char *)Unit(index, shared).state(layer);
#pragma unroll
    for (int i = 0; i < KEYS; ++i)
        copy_async<16>(place + i * (THREADS * 16), from + i * (DV * 4), 16);
}

// Sums over this thread's keys, of its columns.
__device__ __forceinline__ void find(const float4 (&cells)[KEYS], const float *queries, Shared &shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float by_key[4] = {0, 0, 0, 0}, by_query[4] = {0, 0, 0, 0}, products = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; i += 4) {
        const float4 q = *(const float4 *)&queries[i], k = *(const float4 *)&queries[DK + i];
        const float four_queries[4] = {q.x, q.y, q.z, q.w}, four_keys[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float query = four_queries[j], key = four_keys[j];
            const float4 &s = cells[i + j];
            products = fmaf(query, key, products);
            by_key[0] = fmaf(key, s.x, by_key[0]);
            by_key[1] = fmaf(key, s.y, by_key[1]);
            by_key[2] = fmaf(key, s.z, by_key[2]);
            by_key[3] = fmaf(key, s.w, by_key[3]);
            by_query[0] = fmaf(query, s.x, by_query[0]);
            by_query[1] = fmaf(query, s.y, by_query[1]);
            by_query[2] = fmaf(query, s.z, by_query[2]);
            by_query[3] = fmaf(query, s.w, by_query[3]);
        }
    }
    *(float4 *)&shared.found[warp][0][lane * 4] =
        make_float4(by_key[0], by_key[1], by_key[2], by_key[3]);
    *(float4 *)&shared.found[warp][1][lane * 4] =
        make_float4(by_query[0], by_query[1], by_query[2], by_query[3]);
    if (lane == 0)
        shared.both[warp] = products;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    delta_rows(const u16 *projected, const u16 *taps, u16 *conv, const float *decay,
               const float *dt_bias, float *states, const u16 *norm, const int *rows, int *arrivals,
               u16 *out, int num_tokens, int token_stride, int conv_stride, int state_stride,
               int scale_bits, int key_eps_bits, int eps_bits) {
    const Layer layer = {projected, taps, conv, states, token_stride, conv_stride, state_stride};
    char *ring = shared_memory() + threadIdx.x * 16;
    Shared &shared = *(Shared *)(shared_memory() + STAGES * (DK * DV * 4));
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, num_units = num_tokens * HV;
    const int step = gridDim.x;
    // What is read until the wait is older than some operation that no kernel overtakes: the step's
    // rows, and this layer's states.
#pragma unroll 1
    for (int i = t; i < num_tokens; i += THREADS)
        shared.rows[i] = rows[i];
#pragma unroll 1
    for (int i = t; i < HV; i += THREADS) {
        shared.decay[i] = decay[i];
        shared.bias[i] = dt_bias[i];
    }
    __syncthreads();
    int index = blockIdx.x;
    request_inputs(layer, index, num_units, 0, shared);
    end_batch();
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) {
        request_inputs(layer, index + (i + 1) * step, num_units, i + 1, shared);
        request_state(layer, index + i * step, num_units, ring + i * (DK * DV * 4), shared);
        end_batch();
    }
    const uint2 weight = *(const uint2 *)(norm + lane * 4);
    let_next_kernel_begin();
    wait_for_kernels_before();
    const float scale = __int_as_float(scale_bits), key_eps = __int_as_float(key_eps_bits);
    Token token;
    Inputs inputs;
    inputs.load(layer, Unit(index, shared));
    wait_for_copies<STAGES>();
    // Once for the first unit's channels alone: a second text of it would be read from memory too.
    index -= step;
    for (int turn = -1, stage = 0, input = 0, before = 0; index < num_units; ++turn, index += step) {
        const bool has_next = index + step < num_units;
        const float *queries = &shared.query_and_key[turn & 1][warp * KEYS], *keys = queries + DK;
        float4 cells[KEYS];
        const Token now = token;
        if (turn >= 0) {
            wait_for_copies<STAGES - 1>();
            char *place = ring + stage * (DK * DV * 4);
            stage = stage == STAGES - 1 ? 0 : stage + 1;
#pragma unroll
            for (int i = 0; i < KEYS; ++i)
                cells[i] = *(const float4 *)(place + i * (THREADS * 16));
            find(cells, queries, shared);
            request_inputs(layer, index + (STAGES + 1) * step, num_units, input, shared);
            request_state(layer, index + STAGES * step, num_units, place, shared);
            end_batch();
            input = input == STAGES ? 0 : input + 1;
            if (t == 0)
                shared.is_last = before == HV / HK - 1;
        }
        if (has_next)
            token.begin(inputs, layer, Unit(index + step, shared), input, shared.value[~turn & 1],
                        shared);
        __syncthreads();
        if (has_next) {
            const Unit next(index + step, shared);
            // All threads have the old inputs of its query and key. Nobody reads what others wrote, so
            // the count alone will do: a fence would wait for all that is on its way.
            if (t == 0)
                before = atomicAdd(arrivals + next.token * HK + next.key_head(), 1);
            token.end(shared.query_and_key[~turn & 1], scale, key_eps, shared);
        }
        if (index + 2 * step < num_units)
            inputs.load(layer, Unit(index + 2 * step, shared));
        if (turn < 0) {
            __syncthreads();
            continue;
        }
        const Unit unit(index, shared);
        const float4 value = *(const float4 *)&shared.value[turn & 1][lane * 4];
        const float4 k = sum_of_warps(shared.found, 0);
        const float g = now.decay;
        const float error[4] = {now.beta * (value.x - g * k.x), now.beta * (value.y - g * k.y),
                                now.beta * (value.z - g * k.z), now.beta * (value.w - g * k.w)};
        float *state = unit.state(layer);
#pragma unroll
        for (int i = 0; i < KEYS; i += 4) {
            const float4 k = *(const float4 *)&keys[i];
            const float four_keys[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float4 &s = cells[i + j];
                *(float4 *)(state + (i + j) * DV) =
                    make_float4(fmaf(four_keys[j], error[0], g * s.x),
                                fmaf(four_keys[j], error[1], g * s.y),
                                fmaf(four_keys[j], error[2], g * s.z),
                                fmaf(four_keys[j], error[3], g * s.w));
            }
        }
        if (warp == turn % WARPS) {
            const float4 q = sum_of_warps(shared.found, 1);
            float all = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; ++i)
                all += shared.both[i];
            const float result[4] = {fmaf(all, error[0], g * q.x), fmaf(all, error[1], g * q.y),
                                     fmaf(all, error[2], g * q.z), fmaf(all, error[3], g * q.w)};
            *(uint2 *)(out + (i64)unit.token * (HV * DV) + unit.head * DV + lane * 4) =
                normed_and_gated(result, weight, now.gate, __int_as_float(eps_bits));
        }
        if (shared.is_last) {
            if (t < DK)
                now.move_on(layer, unit);
            if (t == 0)
                arrivals[unit.token * HK + unit.key_head()] = 0;
        }
        __syncthreads();
    }
}
