// What `decode_few.cu` asks of the processor besides. Tests have the same names for a host
// (tests/support/stores_emulation.hpp).

__device__ __forceinline__ u32 bits_of(float value) { return __float_as_uint(value); }

// Asynchronous copies of this thread until now, and until they are there.
__device__ __forceinline__ void close_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void wait_for_closed_copies() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Four matrices of 8 lines of 8 numbers of two bytes in shared memory, turned: lane 8i + j says
// where line j of the i-th is, and lane 4i + t gets of each the numbers i of lines 2t and 2t + 1.
__device__ __forceinline__ void load_turned(u32 (&to)[4], const uint4 *line) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((u32)__cvta_generic_to_shared(line))
                 : "memory");
}
