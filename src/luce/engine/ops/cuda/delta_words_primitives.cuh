// What `delta_words.cu` asks of the processor beyond the rest. Tests have the same names for a host
// (tests/support/delta_words_emulation.hpp).

__device__ __forceinline__ float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// As `arrive`, of the first lane; the others get nothing of it.
__device__ __forceinline__ int arrive_once(int *counter) {
    return threadIdx.x % 32 == 0 ? arrive(counter) : 0;
}
