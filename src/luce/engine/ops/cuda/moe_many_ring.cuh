// Units of weights on their way to a block of threads: some whole rows of each plane, by bulk
// copies that one warp begins; the other warps take whole units, each whoever is free.

// Where matrices lie.
struct Planes {
    const char *codes, *scales, *blocks;
};

// What a unit is for.
struct Task {
    int row, lines, count, slot; // of the result; of `Entry`; of where its first line's x is
};

// N values of each lane to sums over each LANES lanes: of value lane % LANES / (LANES / N). Values
// that a lane keeps are halved, step by step.
template <int N, int LANES, int COUNT = N / 2> struct Fold {
    template <class V> __device__ __forceinline__ static void run(V &values) {
        const int bit = LANES * COUNT / N;
        const bool upper = threadIdx.x % 32 & bit;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float kept = upper ? values[i + COUNT] : values[i];
            const float given = upper ? values[i] : values[i + COUNT];
            values[i] = kept + of_lane_across(given, bit);
        }
        Fold<N, LANES, COUNT / 2>::run(values);
    }
};

template <int N, int LANES> struct Fold<N, LANES, 0> {
    template <class V> __device__ __forceinline__ static void run(V &values) {
#pragma unroll
        for (int bit = LANES / 2 / N; bit > 0; bit /= 2)
            values[0] += of_lane_across(values[0], bit);
    }
};

template <int N, int LANES> __device__ __forceinline__ float sum_of_lanes(float (&values)[N]) {
    Fold<N, LANES>::run(values);
    return values[0];
}

struct Ring {
    char *slots;
    Task *tasks;
    u64 *full, *empty;
    int *tickets, *begun;

    static const int bytes = SLOTS * (SLOT_BYTES + 32) + 16;

    __device__ __forceinline__ explicit Ring(char *at)
        : slots(at), tasks((Task *)(at + SLOTS * SLOT_BYTES)), full((u64 *)(tasks + SLOTS)),
          empty(full + SLOTS), tickets((int *)(empty + SLOTS)),
          begun(tickets + 1) {}

    // One thread; before a barrier.
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < SLOTS; ++i) {
            init_barrier(full + i, 1);
            init_barrier(empty + i, 1);
        }
        *tickets = WARPS;
        *begun = 0;
    }

    // Until unit n is there. Barriers show parities alone, so it must have been begun first: its
    // slot may still wait for the unit before.
    __device__ __forceinline__ void wait_for_unit(int n) const {
        wait_for_more(begun, n);
        wait_for(full + n % SLOTS, n / SLOTS & 1);
    }

    // One thread: feeds the ring with a part, whose units are those from `done` on of the block's.
    // KIND says how many rows they have, and where.
    template <class KIND>
    __device__ __forceinline__ void feed(const Work &work, const Part &part, int done,
                                         const Planes &routed, const Planes &shared) const {
        const int width = KIND::width, rows = KIND::rows, total = KIND::halves * rows;
        const int code_bytes = width / 2, scale_bytes = width / 16, block_bytes = width / 64;
        int at = part.entry, unit = part.unit;
        Entry entry = work.entries[part.count ? at : 0];
#pragma unroll 1
        for (int n = done; n < done + part.count; ++n) {
            const int slot = n % SLOTS;
            u64 *const there = full + slot;
            if (n >= SLOTS)
                wait_for(empty + slot, (n / SLOTS & 1) ^ 1);
            tasks[slot] = {unit * rows, (int)entry.lines, entry.count,
                           (at - part.entry) * MOST_SLOTS};
            expect_bytes(there, total * (code_bytes + scale_bytes + block_bytes));
            show_number(begun, n + 1);
            const bool is_shared = entry.expert < 0;
            const char *const codes = is_shared ? shared.codes : routed.codes;
            const char *const scales = is_shared ? shared.scales : routed.scales;
            const char *const blocks = is_shared ? shared.blocks : routed.blocks;
            char *to = slots + slot * SLOT_BYTES;
#pragma unroll
            for (int half = 0; half < KIND::halves; ++half) {
                const i64 row = max(entry.expert, 0) * KIND::expert_rows + half * KIND::half_rows +
                                unit * rows;
                copy_once(to + half * (rows * code_bytes), codes + row * code_bytes,
                          rows * code_bytes, there);
                copy_once(to + total * code_bytes + half * (rows * scale_bytes),
                          scales + row * scale_bytes, rows * scale_bytes, there);
                copy_once(to + total * (code_bytes + scale_bytes) + half * (rows * block_bytes),
                          blocks + row * block_bytes, rows * block_bytes, there);
            }
            if (++unit == KIND::units) {
                unit = 0;
                ++at;
                if (n + 1 < done + part.count)
                    entry = work.entries[at];
            }
        }
    }
    // A warp that multiplies: `multiply` of units from `next` on, until `end`; each lets the slot
    // go when it has what lies there. Returns the ticket that it has then.
    template <class KIND, class USE>
    __device__ __forceinline__ int consume(int next, int end, const USE &use) const {
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        while (next < end) {
            const int slot = next % SLOTS;
            wait_for_unit(next);
            const Task task = tasks[slot];
            typename KIND::Weights weights;
            weights.load(slots + slot * SLOT_BYTES);
            meet_warp();
            if (lane == 0) {
                arrive(empty + slot);
                next = atomicAdd(tickets, 1);
            }
            next = of_first_lane(next);
#pragma unroll 1
            for (int i = 0; i < task.count; ++i)
                use(weights, task, i, task.lines >> 8 * i & 0xff);
        }
        return next;
    }
};
