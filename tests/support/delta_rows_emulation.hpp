// What delta_rows.cu asks for beyond the rest. A thread's copies are made when it waits for them: what
// is read before, or overwritten too early, shows.

#include "cuda_emulation.hpp"

#include <map>

inline float exp2_of(float x) { return std::exp2(x); }
inline float log2_of(float x) { return std::log2(x); }
inline float reciprocal_of(float x) { return 1.0f / x; }
inline float fminf(float a, float b) { return std::fmin(a, b); }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }

namespace emulation {

using Batches = std::deque<std::vector<Copy>>;
inline std::map<Thread *, Batches> batches;

} // namespace emulation

inline void end_batch() {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    emulation::batches[&me].push_back(std::move(me.open));
    me.open.clear();
}

template <int LEFT> inline void wait_for_copies() {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    emulation::Batches &mine = emulation::batches[&me];
    for (; (int)mine.size() > LEFT; mine.pop_front())
        for (const emulation::Copy &each : mine.front())
            std::memcpy(each.to, each.from, each.bytes);
}
