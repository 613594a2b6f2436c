// Who meets which expert, found by every block of threads: each expert that a step's tokens chose,
// with up to four of their pairs of a token and a choice, then the shared expert, with up to four
// tokens. The order is that of first pairs. And which part of all that work is this block's.

#define MOST_SLOTS 4
#define MOST_PAIRS (MOST_TOKENS * CHOSEN)
#define MOST_ENTRIES (MOST_PAIRS + HAS_SHARED * (MOST_TOKENS / MOST_SLOTS))
#define MASK_WORDS ((MOST_PAIRS + 31) / 32)

struct Entry {
    int expert, count; // -1: the shared one
    u32 lines;         // a byte each: pairs, or beyond all pairs tokens of the shared expert
    int before;        // what a unit of each entry before it costs
    __device__ __forceinline__ int cost() const { return COST_UNIT + COST_TOKEN * count; }
    __device__ __forceinline__ int line(int slot) const { return lines >> 8 * slot & 0xff; }
};

// A block's part: units of entries, from one on; a unit of each costs so much.
struct Part {
    int entry, unit, count, all;
    __device__ __forceinline__ int last(int units) const {
        return entry + (unit + count - 1) / units;
    }
};

struct Work {
    Entry *entries;
    u32 *leaders; // pairs that begin an entry
    u32 *masks;   // pairs of each expert
    Part *parts; // of gate and up, and of down

    static const int bytes = MOST_ENTRIES * 16 + (EXPERTS + 1) * MASK_WORDS * 4 + 2 * 16;

    __device__ __forceinline__ explicit Work(char *at)
        : entries((Entry *)at), leaders((u32 *)(at + MOST_ENTRIES * 16)),
          masks(leaders + MASK_WORDS), parts((Part *)(masks + EXPERTS * MASK_WORDS)) {}

    // Before the choice is known; all threads.
    __device__ __forceinline__ void clear() const {
        for (int i = threadIdx.x; i < (EXPERTS + 1) * MASK_WORDS; i += ALL_THREADS)
            leaders[i] = 0;
    }

    // All threads, of which there are at least as many as pairs, after a barrier. Returns how many
    // entries there are.
    __device__ __forceinline__ int make(const i64 *experts, int tokens) const {
        const int pair = threadIdx.x, word = pair / 32;
        const u32 bit = 1u << pair % 32, below = bit - 1;
        const bool is_one = pair < tokens * CHOSEN;
        int expert = 0, rank = 0;
        if (is_one) {
            expert = (int)__ldcg(experts + pair);
            atomicOr(masks + expert * MASK_WORDS + word, bit);
        }
        __syncthreads();
        const u32 *mine = masks + expert * MASK_WORDS;
        if (is_one) {
            for (int i = 0; i < word; ++i)
                rank += __popc(mine[i]);
            rank += __popc(mine[word] & below);
            if (rank % MOST_SLOTS == 0)
                atomicOr(leaders + word, bit);
        }
        __syncthreads();
        int routed = 0, at = 0;
        for (int i = 0; i < MASK_WORDS; ++i) {
            routed += __popc(leaders[i]);
            at += i < word ? __popc(leaders[i]) : i == word ? __popc(leaders[i] & below) : 0;
        }
        if (is_one && rank % MOST_SLOTS == 0) {
            Entry entry = {expert, 0, 0, 0};
            int last = pair, i = word;
            u32 left = mine[word] & ~below;
            for (int slot = 0; slot < MOST_SLOTS; ++slot) {
                while (!left && i + 1 < MASK_WORDS)
                    left = mine[++i];
                if (left) {
                    last = i * 32 + __ffs(left) - 1;
                    left &= left - 1;
                    ++entry.count;
                }
                entry.lines |= (u32)last << 8 * slot;
            }
            entries[at] = entry;
        }
        const int first = threadIdx.x * MOST_SLOTS;
        if (HAS_SHARED && first < tokens) {
            Entry entry = {-1, min(MOST_SLOTS, tokens - first), 0, 0};
            for (int slot = 0; slot < MOST_SLOTS; ++slot)
                entry.lines |= (u32)(tokens * CHOSEN + min(first + slot, tokens - 1)) << 8 * slot;
            entries[routed + threadIdx.x] = entry;
        }
        __syncthreads();
        return routed + (HAS_SHARED ? (tokens + MOST_SLOTS - 1) / MOST_SLOTS : 0);
    }

    // One warp: tokens that a part of entries with so many units needs, a bit each.
    __device__ __forceinline__ u32 tokens_of(const Part &part, int units, int tokens) const {
        const int last = part.count ? part.last(units) : part.entry - 1;
        u32 needed = 0;
        for (int i = threadIdx.x % 32; i < (last - part.entry + 1) * MOST_SLOTS; i += 32) {
            const Entry &entry = entries[part.entry + i / MOST_SLOTS];
            const int line = entry.line(i % MOST_SLOTS);
            needed |= 1u << (entry.expert < 0 ? line - tokens * CHOSEN : line / CHOSEN);
        }
        return any_of_warp(needed);
    }

    // One warp: this block's part of entries that have `units` each; parts are of equal cost.
    __device__ __forceinline__ void share(Part &part, int count, int units) const {
        const int each = (MOST_ENTRIES + 31) / 32, lane = threadIdx.x % 32;
        int costs[each], own = 0;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int at = lane * each + i;
            costs[i] = at < count ? entries[at].cost() : 0;
            own += costs[i];
        }
        int end = own;
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const int before = of_lane(end, lane >= far ? lane - far : lane);
            end += lane >= far ? before : 0;
        }
        const int all = of_lane(end, 31);
        int before = end - own, found[2] = {0, 0};
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            // Below 2^31: 2^10 a unit of all entries, 2^9 units and 2^8 blocks are fewer.
            const int from = (int)((u32)(all * units) * (blockIdx.x + side) / gridDim.x);
            int start = before * units, at = 0, cost = 1, behind = -1;
#pragma unroll
            for (int i = 0; i < each; ++i) {
                if (from >= start && from < start + costs[i] * units) {
                    at = lane * each + i;
                    cost = costs[i];
                    behind = from - start;
                }
                start += costs[i] * units;
            }
            if (behind >= 0)
                found[side] = at * units + (behind + cost - 1) / cost;
        }
#pragma unroll
        for (int i = 0; i < each; ++i) {
            if (lane * each + i < count)
                entries[lane * each + i].before = before;
            before += costs[i];
        }
#pragma unroll
        for (int side = 0; side < 2; ++side)
            found[side] = blockIdx.x + side == gridDim.x ? count * units
                                                        : (int)most_of_warp(found[side]);
        if (lane == 0)
            part = {found[0] / units, found[0] % units, found[1] - found[0], all};
    }

    // Of those that have units of an entry, the first block, or the last one.
    __device__ __forceinline__ int block_of(const Part &part, int entry, int units,
                                            bool is_last) const {
        const Entry &each = entries[entry];
        const int at = each.before * units + (is_last ? each.cost() * (units - 1) : 0);
        return (int)(((u32)(at + 1) * gridDim.x - 1) / (u32)(part.all * units));
    }
};
