// What moe_many_stage.cu asks for beyond the rest.

#include "split_emulation.hpp"

template <class T> inline T __ldg(const T *at) {
    emulation::check_range((const char *)at, sizeof(T));
    return *at;
}
inline float fabsf(float x) { return std::fabs(x); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float rintf(float x) { return std::nearbyint(x); }
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
inline int dot_low(int, u32, int) { return 0; }
inline int dot_high(int, u32, int) { return 0; }
inline float exp2_of(float x) { return std::exp2(x); }
inline float reciprocal_of(float x) { return 1.0f / x; }
