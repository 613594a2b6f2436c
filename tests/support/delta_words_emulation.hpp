// What one token of a gated DeltaNet layer asks for beyond the rest.

#include "split_emulation.hpp"

inline float log2_of(float x) { return std::log2(x); }
inline float exp2_of(float x) { return std::exp2(x); }
inline float reciprocal_of(float x) { return 1.0f / x; }
inline float fminf(float a, float b) { return std::fmin(a, b); }
inline int __float2int_rn(float x) { return (int)std::nearbyint(x); }
inline int __float_as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline int sum_of_warp(int number) {
    // Exact: sums are below 2^24.
    for (int bits = 1; bits < 32; bits *= 2)
        number += (int)of_lane_across((float)number, bits);
    return number;
}
inline u32 count_around(u32 *counter, u32 limit) {
    const u32 before = *counter;
    *counter = before + 1 == limit ? 0 : before + 1;
    return before;
}
