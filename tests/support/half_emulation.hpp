// Arithmetic of pairs of half-precision numbers.

template <class A, class B> inline auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }

namespace emulation {

// Half of the difference goes to the even one.
inline u32 to_half(double value) {
    u32 sign = std::signbit(value) ? 0x8000 : 0;
    double size = std::fabs(value);
    if (std::isnan(value))
        return 0x7fff;
    if (size >= 65520.0)
        return sign | 0x7c00;
    int exponent = size < std::ldexp(1.0, -14) ? -14 : std::ilogb(size);
    u32 units = (u32)std::nearbyint(std::ldexp(size, 10 - exponent));
    return sign | ((exponent + 14) * 1024 + units);
}

inline float number_of_half(u32 bits) { return half_to_float(bits & 0xffff); }

template <class F> inline u32 each_half(F of) { return to_half(of(0)) | to_half(of(16)) << 16; }

} // namespace emulation

inline u32 pack_half(float low, float high) {
    return emulation::to_half(low) | emulation::to_half(high) << 16;
}

inline u32 multiply_add_half(u32 a, u32 b, u32 c) {
    return emulation::each_half([=](int at) {
        return (double)half_to_float(a >> at & 0xffff) * half_to_float(b >> at & 0xffff) +
               half_to_float(c >> at & 0xffff);
    });
}

inline u32 multiply_half(u32 a, u32 b) { return multiply_add_half(a, b, 0x80008000u); }

inline u32 subtract_half(u32 a, u32 b) { return multiply_add_half(b, 0xbc00bc00u, a); }

inline u32 larger_of_each(u32 a, u32 b) {
    return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16;
}
