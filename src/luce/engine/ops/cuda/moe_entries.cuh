// Who meets which expert: each expert that a step's tokens chose, with up to four of their pairs of
// a token and a choice, then the shared expert, with up to four tokens. The order is that of first
// pairs.

struct Entry {
    int expert, count;
    u32 pairs; // a byte each; of the last again where there are less. Of the shared expert: tokens.
    __device__ __forceinline__ int pair(int slot) const { return pairs >> 8 * slot & 0xff; }
};

struct Entries {
    Entry *entries;
    u32 *leaders; // pairs that begin an entry
    u32 *masks;   // pairs of each expert

    static const int mask_words = (MOST_PAIRS + 31) / 32;
    static const int most = MOST_PAIRS + MOST_TOKENS / MOST_SLOTS;

    __device__ __forceinline__ explicit Entries(char *at)
        : entries((Entry *)at), leaders((u32 *)(at + most * sizeof(Entry))),
          masks(leaders + mask_words) {}

    // Before the choice is known; all threads, and a barrier after it.
    __device__ __forceinline__ void clear(int num_experts) const {
        for (int i = threadIdx.x; i < (num_experts + 1) * mask_words; i += WARPS * 32)
            leaders[i] = 0;
    }

    __device__ __forceinline__ static int bits(u32 word) { return __popc(word); }

    // All threads, of which there are at least as many as pairs. Returns how many are routed.
    __device__ __forceinline__ int make(const i64 *experts, int tokens) const {
        const int pair = threadIdx.x, word = pair / 32;
        const u32 bit = 1u << pair % 32, below = bit - 1;
        const bool is_one = pair < tokens * CHOSEN;
        int expert = 0, rank = 0;
        if (is_one) {
            expert = (int)experts[pair];
            atomicOr(masks + expert * mask_words + word, bit);
        }
        __syncthreads();
        const u32 *mine = masks + expert * mask_words;
        if (is_one) {
            for (int i = 0; i < word; ++i)
                rank += bits(mine[i]);
            rank += bits(mine[word] & below);
            if (rank % MOST_SLOTS == 0)
                atomicOr(leaders + word, bit);
        }
        __syncthreads();
        int routed = 0, at = 0;
        for (int i = 0; i < mask_words; ++i) {
            routed += bits(leaders[i]);
            at += i < word ? bits(leaders[i]) : i == word ? bits(leaders[i] & below) : 0;
        }
        if (is_one && rank % MOST_SLOTS == 0) {
            Entry entry = {expert, 0, 0};
            int last = pair, i = word;
            u32 left = mine[word] & ~below;
            for (int slot = 0; slot < MOST_SLOTS; ++slot) {
                while (!left && i + 1 < mask_words)
                    left = mine[++i];
                if (left) {
                    last = i * 32 + __ffs(left) - 1;
                    left &= left - 1;
                    ++entry.count;
                }
                entry.pairs |= (u32)last << 8 * slot;
            }
            entries[at] = entry;
        }
        const int first = threadIdx.x * MOST_SLOTS;
        if (HAS_SHARED && first < tokens) {
            Entry entry = {0, min(MOST_SLOTS, tokens - first), 0};
            for (int slot = 0; slot < MOST_SLOTS; ++slot)
                entry.pairs |= (u32)min(first + slot, tokens - 1) << 8 * slot;
            entries[routed + threadIdx.x] = entry;
        }
        __syncthreads();
        return routed;
    }
};
