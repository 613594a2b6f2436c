// silu(gate x) * (up x) of every pair of a token and an expert it chose, and of every token with the
// shared expert: up to MOST_TOKENS tokens.
//
// A warp takes strips: 8 rows of an expert's gate and the same of its up, all columns, for all its
// tokens, whose x lies in shared memory as moe_stage.cu left it. A strip's results are an eight of
// what down multiplies: they are left as its bytes at once, with a scale of their own.

#define GROUPS (UNITS * 8)
#define TOKEN_BYTES (GROUPS * 80)
#define GROUP_IMAGE 96
#define IMAGE (SIZE / 32 * GROUP_IMAGE)
#define S_IMAGE (S_SIZE / 32 * GROUP_IMAGE)
#define STRIP 8
#define THREADS (WARPS * 32)
#define ZEROS_BYTES 1024

struct Task {
    Planes routed, shared;
    char *image, *s_image;
};

// x in shared memory.
struct Vectors {
    char *zeros, *rows;
    u64 *barrier;

    static const int bytes = ZEROS_BYTES + MOST_TOKENS * TOKEN_BYTES + 16;

    __device__ __forceinline__ explicit Vectors(char *at)
        : zeros(at), rows(at + ZEROS_BYTES), barrier((u64 *)(rows + MOST_TOKENS * TOKEN_BYTES)) {}

    // All threads, and a barrier after it.
    __device__ __forceinline__ void begin() const {
        for (int i = threadIdx.x; i < ZEROS_BYTES / 4; i += THREADS)
            ((u32 *)zeros)[i] = 0;
        if (threadIdx.x == 0) {
            init_barrier(barrier, 1);
            show_barriers();
        }
    }
    __device__ __forceinline__ void fill(const char *from, int tokens) const {
        if (threadIdx.x == 0) {
            expect_bytes(barrier, tokens * TOKEN_BYTES);
            copy_bulk(rows, from, tokens * TOKEN_BYTES, barrier);
        }
    }
    __device__ __forceinline__ void wait() const { wait_for(barrier, 0); }
    __device__ __forceinline__ float4 group(int token, int group) const {
        return ((const float4 *)(rows + token * TOKEN_BYTES + GROUPS * 64))[group];
    }
};

// Where a thread reads x of a token: zeros where its column is not for its group.
struct Place {
    int quad, t, step;
    __device__ __forceinline__ Place() {
        const int lane = threadIdx.x % 32;
        quad = lane / 4;
        t = lane % 4;
        step = quad / 2 == t ? UNIT * 2 : 0;
    }
    __device__ __forceinline__ const char *of(const Vectors &vectors, int token) const {
        if (step)
            return vectors.rows + token * TOKEN_BYTES + t * 64 + quad % 2 * 32;
        return vectors.zeros + (quad / 2 % 2 ? 0 : 64);
    }
};

// Strips of a warp, unit by unit.
template <int ROWS> struct Way {
    const Entry *entries;
    int item, end, unit;
    Lines lines;

    static const int units = UNITS, strips = ROWS / STRIP;

    __device__ __forceinline__ Way(const Entry *entries, int first, int end)
        : entries(entries), item(first + threadIdx.x / 32), end(end) {
        enter();
    }
    __device__ __forceinline__ void enter() {
        unit = 0;
        if (is_done())
            return;
        const u32 first = entries[item / strips].expert * 2 * ROWS + item % strips * STRIP;
        lines.aim(first * UNITS, (first + ROWS) * UNITS, UNITS);
    }
    __device__ __forceinline__ bool is_done() const { return item >= end; }
    __device__ __forceinline__ void step() {
        if (++unit < UNITS)
            return;
        item += WARPS;
        enter();
    }
};

template <class F, int FIRST, int N>
__device__ __forceinline__ void add_piece(const Piece<F> &piece, const Vectors &vectors,
                                          const Place &at, int unit,
                                          const int (&tokens)[MOST_SLOTS], Totals &total) {
#pragma unroll
    for (int span = 0; span < SPANS; ++span) {
        SpanOfX<false> x[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const char *from = at.of(vectors, tokens[FIRST + k]) + unit * at.step + span * 256;
            x[k].right[0] = *(const uint4 *)from;
            x[k].right[1] = *(const uint4 *)(from + 16);
            const float4 of = vectors.group(tokens[FIRST + k], unit * 8 + span * 4 + at.t);
            x[k].scale[0] = of.x;
            x[k].sum[0] = of.y;
            x[k].sum[1] = of.z;
        }
        add_span<F, false, FIRST, N>(piece, span, x, total);
    }
}

// silu(gate) * up of eight rows to where down finds them: bytes of whole numbers, and their scale.
__device__ __forceinline__ void leave(const Place &at, char *image, int strip,
                                      float gate, float up) {
    gate = sum_of_row(gate);
    up = sum_of_row(up);
    const float value = gate * sigmoid(gate) * up;
    float most = fabsf(value);
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2)
        most = larger(most, of_lane_across(most, bits));
    const float scale = scale_of(most);
    const int number = (int)rintf(value * inverse_of(most)), upper = upper_byte(number);
    float sum = (float)number;
#pragma unroll
    for (int bits = 4; bits < 32; bits *= 2)
        sum += of_lane_across(sum, bits);
    char *group = image + strip / 4 * GROUP_IMAGE;
    const int eight = strip % 4;
    if (at.t < 2)
        group[at.t * 32 + eight * 8 + at.quad % 4 * 2 + at.quad / 4] =
            (char)(at.t ? number - upper * 256 : upper);
    else if (at.quad == 0)
        *(float *)(group + 64 + (at.t - 2) * 16 + eight * 4) = at.t == 2 ? scale : scale * sum;
}

// Strips from `first` to `end`, of a list of entries.
template <class F, int ROWS, int IMAGE_BYTES, bool IS_SHARED> struct Run {
    const Vectors &vectors;
    const Place &at;
    char *image;
    Way<ROWS> now;
    Ring<F, Way<ROWS>> ring;

    __device__ __forceinline__ Run(const Planes &planes, const Entry *entries, char *memory,
                                   const Vectors &vectors, const Place &at, char *image, int first,
                                   int end)
        : vectors(vectors), at(at), image(image), now(entries, first, end),
          ring(planes, memory, now) {}

    __device__ __forceinline__ void work() {
#pragma unroll 1
        while (!now.is_done())
            strip();
    }

    __device__ __forceinline__ void strip() {
        const Entry entry = now.entries[now.item / (ROWS / STRIP)];
        const int strip = now.item % (ROWS / STRIP);
        int tokens[MOST_SLOTS];
        Totals total = {};
#pragma unroll
        for (int k = 0; k < MOST_SLOTS; ++k)
            tokens[k] = IS_SHARED ? entry.pair(k) : entry.pair(k) / CHOSEN;
#pragma unroll 1
        for (int unit = 0; unit < UNITS; ++unit) {
            Piece<F> piece;
            ring.take(piece, now.lines, unit);
            if (entry.count == 1)
                add_piece<F, 0, 1>(piece, vectors, at, unit, tokens, total);
            else
                add_piece<F, 0, 2>(piece, vectors, at, unit, tokens, total);
            if (entry.count > 2)
                add_piece<F, 2, 2>(piece, vectors, at, unit, tokens, total);
        }
#pragma unroll 1
        for (int k = 0; k < entry.count; ++k)
            leave(at, image + (i64)entry.pair(k) * IMAGE_BYTES, strip, of_slot(total, k, 0),
                  of_slot(total, k, 1));
        now.item += WARPS;
        now.enter();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe_inner(const char *x, const i64 *experts, char *image, char *s_image,
              const char *codes, const char *high, const char *scales, const char *blocks,
              const char *s_codes, const char *s_high, const char *s_scales, const char *s_blocks,
              int num_tokens, int num_experts) {
    char *shared = shared_memory();
    char *ring = shared + Vectors::bytes;
    const Vectors vectors(shared);
    const Entries list(ring + WARPS * RING * SLOT_BYTES);
    const Place at;
    list.clear(num_experts);
    vectors.begin();
    wait_for_kernels_before();
    // Down may begin now: it knows the choice.
    let_next_kernel_begin();
    __syncthreads();
    vectors.fill(x, num_tokens);
    const int routed = list.make(experts, num_tokens) * (SIZE / STRIP);
    const int fours = (num_tokens + MOST_SLOTS - 1) / MOST_SLOTS;
    const int all = routed + (HAS_SHARED ? fours * (S_SIZE / STRIP) : 0);
    const int first = (int)((i64)blockIdx.x * all / gridDim.x);
    const int end = (int)((i64)(blockIdx.x + 1) * all / gridDim.x);
    const Planes planes = {codes, high, scales, blocks};
    Run<RoutedFormat, SIZE, IMAGE, false> run(planes, list.entries, ring, vectors, at, image,
                                              min(first, routed), min(end, routed));
    vectors.wait();
    run.work();
#if HAS_SHARED
    if (end > routed) {
        const Entry *others = list.entries + routed / (SIZE / STRIP);
        const Planes theirs = {s_codes, s_high, s_scales, s_blocks};
        Run<SharedFormat, S_SIZE, S_IMAGE, true> last(theirs, others, ring, vectors, at, s_image,
                                                      max(first - routed, 0), end - routed);
        last.work();
    }
#endif
}
