// What quant_split.cu asks for beyond the rest: half precision, and clusters of blocks.

#include "cuda_emulation.hpp"

#include "cluster_emulation.hpp"

#include "half_emulation.hpp"

inline u32 most_of_warp(u32 number) {
    for (int bits = 1; bits < 32; bits *= 2) {
        const float other = of_lane_across(__int_as_float(number), bits);
        u32 theirs;
        std::memcpy(&theirs, &other, 4);
        number = max(number, theirs);
    }
    return number;
}

inline void multiply_halves(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    emulation::multiply_by(emulation::number_of_half, c, a0, a1, a2, a3, b0, b1);
}

inline uint4 load_vector(const char *from) {
    if ((uintptr_t)from % 16)
        emulation::fail("a load is not aligned");
    emulation::check_range(from, 16);
    return *(const uint4 *)from;
}

template <int BYTES> inline u32 load_word(const char *from) {
    if ((uintptr_t)from % BYTES)
        emulation::fail("a load is not aligned");
    emulation::check_range(from, BYTES);
    u32 word = 0;
    std::memcpy(&word, from, BYTES);
    return word;
}
