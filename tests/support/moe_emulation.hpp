// What the kernels of mixtures ask for beyond the rest.

#include "bulk_emulation.hpp"

inline u32 atomicOr(u32 *at, u32 value) {
    const u32 before = *at;
    *at |= value;
    return before;
}
inline int __popc(u32 word) { return __builtin_popcount(word); }
inline int __ffs(u32 word) { return __builtin_ffs((int)word); }
inline void count_up(u64 *at) { ++*at; }
inline float exp2_of(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float fabsf(float x) { return std::fabs(x); }
inline float rintf(float x) { return std::nearbyint(x); }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }

// Every lane takes what it needs of the others before any of them goes on.
template <bool IS_SIGNED>
inline void multiply_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    using emulation::block;
    emulation::Thread &me = block->threads[block->current];
    const u32 operands[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(me.operands, operands, sizeof operands);
    meet_warp();
    const int lane = block->current % 32, first = block->current - lane;
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 32; ++k) {
            const u32 *of_a = block->threads[first + lane / 4 * 4 + k % 16 / 4].operands;
            const u32 *of_b =
                block->threads[first + (lane % 4 * 2 + i % 2) * 4 + k % 16 / 4].operands;
            const u32 a = of_a[k / 16 * 2 + i / 2] >> k % 4 * 8 & 0xff;
            const u32 b = of_b[4 + k / 16] >> k % 4 * 8 & 0xff;
            c[i] += (IS_SIGNED ? (int)(int8_t)a : (int)a) * (int8_t)b;
        }
    meet_warp();
}

namespace emulation {

// What a thread copies ahead: made when it waits for it, so that what is read before shows.
struct Ahead {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> batches;
};
inline std::map<Thread *, Ahead> ahead;
inline Ahead &mine_ahead() { return ahead[&block->threads[block->current]]; }

} // namespace emulation

template <int BYTES> inline void copy_ahead(char *to, const char *from) {
    if ((uintptr_t)to % BYTES || (uintptr_t)from % BYTES)
        emulation::fail("a copy is not aligned");
    if (to < shared_memory() || to + BYTES > &emulation::block->shared.back() + 1)
        emulation::fail("a copy goes beyond shared memory");
    emulation::check_range(from, BYTES);
    std::memset(to, 0xff, BYTES);
    emulation::mine_ahead().open.push_back({to, from, BYTES, BYTES});
}

inline void end_batch() {
    emulation::Ahead &mine = emulation::mine_ahead();
    mine.batches.push_back(std::move(mine.open));
    mine.open.clear();
}

template <int LEFT> inline void wait_for_copies() {
    emulation::Ahead &mine = emulation::mine_ahead();
    for (; (int)mine.batches.size() > LEFT; mine.batches.pop_front())
        for (const emulation::Copy &each : mine.batches.front())
            std::memcpy(each.to, each.from, each.bytes);
}
