// What the kernels ask of the processor itself. Tests have the same names for a host
// (tests/support/cuda_emulation.hpp), so that a kernel's own text runs without a GPU.

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
typedef unsigned long long u64;

// c += A B of a warp: A 16 x 16 and B 16 x 8 bfloat16. With quad = lane / 4 and t = lane % 4, a
// lane gives of A rows quad (a0, a2) and quad + 8 (a1, a3), of B column quad, each with the sums'
// indices 2t, 2t + 1 (a0, a1, b0) and 2t + 8, 2t + 9; it has of c the same rows (c0, c1 and c2,
// c3), columns 2t and 2t + 1.
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                         u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float half_to_float(u32 bits) {
    float wide;
    asm("{.reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h;}" : "=f"(wide) : "h"((u16)bits));
    return wide;
}

__device__ __forceinline__ float bfloat16_to_float(u16 bits) {
    return __int_as_float((u32)bits << 16);
}

__device__ __forceinline__ u16 float_to_bfloat16(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two bfloat16 in a word.
__device__ __forceinline__ u32 pack_bfloat16(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// left - right of each of two bfloat16.
__device__ __forceinline__ u32 subtract_bfloat16(u32 left, u32 right) {
    u32 word;
    asm("{.reg .b32 minus; mov.b32 minus, 0xbf80bf80; fma.rn.bf16x2 %0, %2, minus, %1;}"
        : "=r"(word)
        : "r"(left), "r"(right));
    return word;
}

__device__ __forceinline__ char *shared_memory() {
    extern __shared__ uint4 dynamic[];
    return (char *)dynamic;
}

// Begin to copy BYTES (4, 8 or 16), aligned so, to shared memory; after the first `there` come
// zeros, and nothing beyond them is read.
template <int BYTES>
__device__ __forceinline__ void copy_async(char *to, const char *from, int there) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(there)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from),
                     "n"(BYTES), "r"(there)
                     : "memory");
}

// Copies begun since the last call are one batch.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last LEFT batches of this thread are there.
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// The next kernel in the stream, if it may start early, may do so from now on.
__device__ __forceinline__ void let_next_kernel_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the kernel before in the stream is done and what it wrote can be read.
__device__ __forceinline__ void wait_for_kernels_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A matrix in shared memory as `multiply_together` takes it: 16 indices of the sums by columns in
// eights; of each eight columns first indices 0 to 7, then 8 to 15, 16 bytes a column.
__device__ __forceinline__ u64 shared_matrix(const char *at) {
    u32 address = (u32)__cvta_generic_to_shared(at);
    return (u64)((address & 0x3ffff) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}

// c += A B of four warps, or c = A B, for 8 to 64 columns. Each warp has 16 rows of A and c that
// lie as in `multiply`, eight columns after eight. Until `wait_for_products` c and A's registers
// are the tensor cores'.
__device__ __forceinline__ void multiply_together(float (&c)[1][4], u32 a0, u32 a1, u32 a2,
                                                  u32 a3, u64 b, int adds) {
    asm volatile(
        "{.reg .pred adds; setp.ne.b32 adds, %9, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, %8, adds, 1, 1, 0;}"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_together(float (&c)[2][4], u32 a0, u32 a1, u32 a2,
                                                  u32 a3, u64 b, int adds) {
    asm volatile(
        "{.reg .pred adds; setp.ne.b32 adds, %13, 0; "
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, adds, 1, 1, 0;}"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_together(float (&c)[4][4], u32 a0, u32 a1, u32 a2,
                                                  u32 a3, u64 b, int adds) {
    asm volatile(
        "{.reg .pred adds; setp.ne.b32 adds, %21, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, adds, 1, 1, 0;}"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_together(float (&c)[8][4], u32 a0, u32 a1, u32 a2,
                                                  u32 a3, u64 b, int adds) {
    asm volatile(
        "{.reg .pred adds; setp.ne.b32 adds, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, adds, 1, 1, 0;}"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
          "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
          "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
          "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
          "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
          "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(adds));
}

// Registers written before may be multiplied, and added to, from now on.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// After the wait: the compiler has a result of `multiply_together` from here on, not from there.
__device__ __forceinline__ void settle(float &result) {
    asm volatile("" : "+f"(result)::"memory");
}

// What this thread stored to shared memory is there for `multiply_together`, after a barrier.
__device__ __forceinline__ void show_to_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
