// What quant_held.cu asks for beyond the rest: bulk copies, and products of half precision.

#include "hopper_emulation.hpp"

#include "half_emulation.hpp"

inline void copy_bulk(char *to, const char *from, int nbytes, u64 *barrier) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || nbytes % 16)
        emulation::fail("a copy is not aligned");
    if (to < shared_memory() || to + nbytes > &emulation::block->shared.back() + 1)
        emulation::fail("a copy goes beyond shared memory");
    emulation::check_range(from, nbytes);
    std::memset(to, 0xff, nbytes);
    emulation::phases.at(barrier).copies.push_back({to, from, 0, 0, nbytes});
}

inline void multiply_halves(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const int lane = emulation::block->current % 32, quad = lane / 4, t = lane % 4;
    u32 a[32][4], b[32][2];
    std::memcpy(a, emulation::exchange(a0, a1, a2, a3), sizeof a);
    const u32(*given)[4] = emulation::exchange(b0, b1);
    for (int i = 0; i < 32; ++i)
        std::memcpy(b[i], given[i], sizeof b[i]);
    for (int i = 0; i < 4; ++i) {
        double sum = c[i];
        for (int k = 0; k < 16; ++k) {
            const int owner = k % 8 / 2, shift = k % 2 * 16;
            sum += (double)half_to_float(a[quad * 4 + owner][i / 2 + k / 8 * 2] >> shift & 0xffff) *
                   half_to_float(b[(t * 2 + i % 2) * 4 + owner][k / 8] >> shift & 0xffff);
        }
        c[i] = (float)sum;
    }
}

inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
