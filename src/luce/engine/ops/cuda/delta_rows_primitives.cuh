// What `delta_rows.cu` asks of the processor beyond the rest. Tests have the same names for a host
// (tests/support/delta_rows_emulation.hpp).

__device__ __forceinline__ float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The copies that this thread began since the last call are one batch.
__device__ __forceinline__ void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but this thread's last LEFT batches are there.
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
