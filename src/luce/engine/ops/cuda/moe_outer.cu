// hidden += the weighted sum of a token's experts' down products, and the shared expert's by its
// gate; what they multiply is as moe_inner.cu leaves it.
//
// A block of threads has 16 rows of all experts; its warps take entries, all columns. Their results
// meet in shared memory, and each token adds up its own in the order of its choices.

#define GROUP_IMAGE 96
#define IMAGE (SIZE / 32 * GROUP_IMAGE)
#define S_IMAGE (S_SIZE / 32 * GROUP_IMAGE)
#define THREADS (WARPS * 32)

// Entries of a warp, unit by unit.
template <int OF_ROW> struct Way {
    const Entry *entries;
    int item, end, unit;
    Lines lines;

    static const int units = OF_ROW;

    __device__ __forceinline__ Way(const Entry *entries, int first, int end)
        : entries(entries), item(first), end(end) {
        enter();
    }
    __device__ __forceinline__ void enter() {
        unit = 0;
        if (is_done())
            return;
        const u32 first = (entries[item].expert * HIDDEN + blockIdx.x * PIECE_ROWS) * OF_ROW;
        lines.aim(first, first + 8 * OF_ROW, OF_ROW);
    }
    __device__ __forceinline__ bool is_done() const { return item >= end; }
    __device__ __forceinline__ void step() {
        if (++unit < OF_ROW)
            return;
        item += WARPS;
        enter();
    }
};

template <class F, int FIRST, int N>
__device__ __forceinline__ void add_piece(const Piece<F> &piece, const char *const (&from)[4],
                                          int unit, bool is_mine, Totals &total) {
#pragma unroll
    for (int span = 0; span < SPANS; ++span) {
        SpanOfX<true> x[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const char *group = from[FIRST + k] + (unit * 8 + span * 4) * GROUP_IMAGE;
            const uint4 none = {0, 0, 0, 0};
#pragma unroll
            for (int two = 0; two < 2; ++two)
                x[k].right[two] =
                    is_mine ? __ldcg((const uint4 *)(group + (threadIdx.x / 4 % 2 * 2 + two) * 16))
                            : none;
            const float4 scale = __ldcg((const float4 *)(group + 64));
            const float4 sum = __ldcg((const float4 *)(group + 80));
            x[k].scale[0] = scale.x;
            x[k].scale[1] = scale.y;
            x[k].scale[2] = scale.z;
            x[k].scale[3] = scale.w;
            x[k].sum[0] = sum.x + sum.y;
            x[k].sum[1] = sum.z + sum.w;
        }
        add_span<F, true, FIRST, N>(piece, span, x, total);
    }
}

// A warp's entries, from its first one on.
template <class F, int OF_ROW, int IMAGE_BYTES> struct Run {
    const char *image;
    float *results;
    Way<OF_ROW> now;
    Ring<F, Way<OF_ROW>> ring;

    __device__ __forceinline__ Run(const Planes &planes, const Entry *entries, int first, int end,
                                   char *memory, const char *image, float *results)
        : image(image), results(results), now(entries, first, end), ring(planes, memory, now) {}

    __device__ __forceinline__ void work() {
#pragma unroll 1
        while (!now.is_done())
            entry();
    }

    __device__ __forceinline__ void entry() {
        const int lane = threadIdx.x % 32, quad = lane / 4, t = lane % 4;
        const Entry entry = now.entries[now.item];
        const char *from[MOST_SLOTS];
        Totals total = {};
#pragma unroll
        for (int k = 0; k < MOST_SLOTS; ++k)
            from[k] = image + (i64)entry.pair(k) * IMAGE_BYTES + t * GROUP_IMAGE;
#pragma unroll 1
        for (int unit = 0; unit < OF_ROW; ++unit) {
            Piece<F> piece;
            ring.take(piece, now.lines, unit);
            if (entry.count == 1)
                add_piece<F, 0, 1>(piece, from, unit, quad / 2 == t, total);
            else
                add_piece<F, 0, 2>(piece, from, unit, quad / 2 == t, total);
            if (entry.count > 2)
                add_piece<F, 2, 2>(piece, from, unit, quad / 2 == t, total);
        }
#pragma unroll 1
        for (int k = 0; k < entry.count; ++k)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float sum = sum_of_row(of_slot(total, k, r));
                if (t == 0)
                    results[entry.pair(k) * PIECE_ROWS + r * 8 + quad] = sum;
            }
        now.item += WARPS;
        now.enter();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe_outer(const char *image, const char *s_image, const i64 *experts, const u16 *weights,
              const u16 *gate, u16 *hidden, const char *codes, const char *high,
              const char *scales, const char *blocks, const char *s_codes, const char *s_high,
              const char *s_scales, const char *s_blocks, int num_tokens, int gate_stride,
              int num_experts) {
    char *shared = shared_memory();
    char *ring = shared;
    float *results = (float *)(ring + WARPS * RING * SLOT_BYTES), *s_results = results + MOST_PAIRS * PIECE_ROWS;
    const Entries list((char *)(s_results + MOST_TOKENS * PIECE_ROWS));
    list.clear(num_experts);
    __syncthreads();
    // The choice is known: the kernel ahead let this one begin after it had waited for it.
    const int routed = list.make(experts, num_tokens), warp = threadIdx.x / 32;
    const Planes planes = {codes, high, scales, blocks};
    Run<RoutedFormat, SIZE / UNIT, IMAGE> run(planes, list.entries, warp, routed, ring, image,
                                                  results);
    let_next_kernel_begin();
    wait_for_kernels_before();
    run.work();
#if HAS_SHARED
    const Planes theirs = {s_codes, s_high, s_scales, s_blocks};
    const int fours = (num_tokens + MOST_SLOTS - 1) / MOST_SLOTS;
    // Those warps first that have fewer of the others.
    Run<SharedFormat, S_SIZE / UNIT, S_IMAGE> last(
        theirs, list.entries + routed, (warp + WARPS - routed % WARPS) % WARPS, fours, ring, s_image,
        s_results);
    last.work();
#endif
    __syncthreads();
    for (int i = threadIdx.x; i < num_tokens * PIECE_ROWS; i += THREADS) {
        const int token = i / PIECE_ROWS, row = i % PIECE_ROWS;
        u16 *at = hidden + (i64)token * HIDDEN + blockIdx.x * PIECE_ROWS + row;
        float sum = bfloat16_to_float(*at);
#pragma unroll
        for (int choice = 0; choice < CHOSEN; ++choice) {
            const int pair = token * CHOSEN + choice;
            sum = fmaf(bfloat16_to_float(weights[pair]), results[pair * PIECE_ROWS + row], sum);
        }
        if (HAS_SHARED) {
            const float logit = bfloat16_to_float(gate[(i64)token * gate_stride]);
            sum = fmaf(sigmoid(logit), s_results[token * PIECE_ROWS + row], sum);
        }
        *at = float_to_bfloat16(sum);
    }
}
