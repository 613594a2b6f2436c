// What mixtures of 5 to 16 tokens ask for beyond the rest.

#include "hopper_emulation.hpp"

template <class A, class B> inline auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }

namespace emulation {

inline int many_of_lane(int value, int lane) { return from_lane(value, lane); }
inline float many_across(float value, int bits) {
    return from_lane(value, block->current % 32 ^ bits);
}
inline u32 many_most(u32 number) {
    const u32(*lanes)[4] = exchange(number);
    for (int lane = 0; lane < 32; ++lane)
        number = lanes[lane][0] > number ? lanes[lane][0] : number;
    return number;
}

inline u32 many_any(u32 bits) {
    const u32(*lanes)[4] = exchange(bits);
    for (int lane = 0; lane < 32; ++lane)
        bits |= lanes[lane][0];
    return bits;
}

} // namespace emulation

// Those of `cuda_emulation.hpp` are for warps that run one after the other.
#define of_lane emulation::many_of_lane
#define of_first_lane(value) emulation::many_of_lane(value, 0)
#define of_lane_across emulation::many_across
#define most_of_warp emulation::many_most
#define any_of_warp emulation::many_any
#define meet_warp __syncwarp

inline void copy_bulk(char *to, const char *from, int nbytes, u64 *barrier) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || nbytes % 16)
        emulation::fail("a copy is not aligned");
    if (to < shared_memory() || to + nbytes > &emulation::block->shared.back() + 1)
        emulation::fail("a copy goes beyond shared memory");
    emulation::check_range(from, nbytes);
    std::memset(to, 0xff, nbytes);
    emulation::phases.at(barrier).bulk.push_back({to, from, nbytes, nbytes});
}

inline void copy_once(char *to, const char *from, int nbytes, u64 *barrier) {
    copy_bulk(to, from, nbytes, barrier);
}

inline u32 atomicOr(u32 *at, u32 value) {
    const u32 before = *at;
    *at |= value;
    return before;
}
inline int __popc(u32 word) { return __builtin_popcount(word); }
inline int __float_as_int(float value) { return (int)emulation::bits_of(value); }
inline float fabsf(float x) { return std::fabs(x); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float rintf(float x) { return std::nearbyint(x); }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
inline int dot_low(int pair, u32 codes, int total) {
    return total + (int16_t)pair * (int)(codes & 255) + (pair >> 16) * (int)(codes >> 8 & 255);
}
inline int dot_high(int pair, u32 codes, int total) { return dot_low(pair, codes >> 16, total); }
inline void show_number(int *at, int number) {
    *at = number;
    ++emulation::progress;
}
inline void wait_for_more(const int *at, int number) {
    while (*at <= number)
        emulation::yield();
}
inline void come(int *counter) {
    ++*counter;
    ++emulation::progress;
}
inline void wait_for_all(const int *counter, int count) {
    while (*counter < count)
        emulation::meet(emulation::Waits::blocks);
}
