// What `words_product.cu` asks of the processor beyond the rest. Tests have the same names for a host
// (tests/support/words_product_emulation.hpp).

// total + two signed numbers of 16 bits times bytes 0 and 1 of `codes`, or with HIGH bytes 2 and 3.
template <int HIGH> __device__ __forceinline__ int dot_two(int pair, u32 codes, int total) {
    int sum;
    if (HIGH)
        asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(codes), "r"(total));
    else
        asm("dp2a.lo.s32.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(pair), "r"(codes), "r"(total));
    return sum;
}
