// What one token of a gated DeltaNet layer asks for beyond the rest.

#include "moe_emulation.hpp"

inline float log2_of(float x) { return std::log2(x); }
inline float fminf(float a, float b) { return std::fmin(a, b); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline int arrive_once(int *counter) { return threadIdx.x % 32 == 0 ? arrive(counter) : 0; }
inline int __float_as_int(float value) {
    int bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
