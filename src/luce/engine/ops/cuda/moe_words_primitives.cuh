// What mixtures of up to four tokens ask of the processor beyond the rest. Tests have the same names
// for a host (tests/support/moe_words_emulation.hpp).

// total + the two signed halves of `pair` times bytes 0 and 1, or 2 and 3, of `codes`.
__device__ __forceinline__ int dot_low(int pair, u32 codes, int total) {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(total) : "r"(pair), "r"(codes));
    return total;
}

__device__ __forceinline__ int dot_high(int pair, u32 codes, int total) {
    asm("dp2a.hi.s32.u32 %0, %1, %2, %0;" : "+r"(total) : "r"(pair), "r"(codes));
    return total;
}

// N words, aligned so, that no kernel writes and that are read once.
template <int N> __device__ __forceinline__ void read_once(u32 (&to)[N], const char *from) {
    if (N == 4)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[(N + 1) / 2 - 1]), "=r"(to[N / 2]), "=r"(to[N - 1])
                     : "l"(from));
    else if (N == 2)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];"
                     : "=r"(to[0]), "=r"(to[N - 1])
                     : "l"(from));
    else
        asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

// What no kernel writes.
__device__ __forceinline__ u32 read_half(const u16 *from) { return __ldg(from); }
__device__ __forceinline__ u32 read_word(const u32 *from) { return __ldg(from); }
