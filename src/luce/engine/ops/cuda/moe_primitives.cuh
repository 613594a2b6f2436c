// What mixtures ask of the processor beyond the rest. Tests have the same names for a host
// (tests/support/moe_emulation.hpp).

// c += A B of a warp: A 16 x 32 and B 32 x 8 bytes, B's signed, A's as IS_SIGNED says. With quad =
// lane / 4 and t = lane % 4, a lane gives of A rows quad (a0, a2) and quad + 8 (a1, a3), of B
// column quad, each with the sums' indices 4t.. (a0, a1, b0) and 16 + 4t..; it has of c the same
// rows (c0, c1 and c2, c3), columns 2t and 2t + 1.
template <bool IS_SIGNED>
__device__ __forceinline__ void multiply_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                               u32 b1) {
    if (IS_SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Counts up.
__device__ __forceinline__ void count_up(u64 *at) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], 1;" ::"l"(at) : "memory");
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Begin to copy BYTES (4, 8 or 16), aligned so, that no kernel writes, to shared memory.
template <int BYTES> __device__ __forceinline__ void copy_ahead(char *to, const char *from) {
    const u32 at = (u32)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(at), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(BYTES)
                     : "memory");
}

// The copies that this thread began since the last call are one batch.
__device__ __forceinline__ void end_batch() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but this thread's last LEFT batches are there.
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
