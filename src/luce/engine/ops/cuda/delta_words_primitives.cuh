// What `delta_words.cu` asks of the processor beyond the rest. Tests have the same names for a host
// (tests/support/delta_words_emulation.hpp).

__device__ __forceinline__ float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The sum of a warp's numbers.
__device__ __forceinline__ int sum_of_warp(int number) {
    return __reduce_add_sync(0xffffffff, number);
}

// Counts from 0 to LIMIT - 1 and again from 0; what it was. Says nothing of what others wrote.
__device__ __forceinline__ u32 count_around(u32 *counter, u32 limit) {
    u32 before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(limit - 1)
                 : "memory");
    return before;
}
