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

// a b of each of two bfloat16, rounded once.
__device__ __forceinline__ u32 multiply_bfloat16(u32 a, u32 b) {
    u32 word;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

// 16 bytes that are read once.
__device__ __forceinline__ void load_once(u32 *to, const u16 *from) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
}

// Begin to bring what is there to the cache of all multiprocessors.
__device__ __forceinline__ void bring_closer(const u16 *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Adds 1, and returns what was there: who comes later sees what all before it wrote until then.
__device__ __forceinline__ int arrive(int *counter) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    return before;
}

// All lanes of a warp: what they wrote until now they can all read.
__device__ __forceinline__ void meet_warp() {
    __syncwarp();
}

// What the first lane gave.
__device__ __forceinline__ int of_first_lane(int value) {
    return __shfl_sync(0xffffffff, value, 0);
}

// What that lane gave.
__device__ __forceinline__ int of_lane(int value, int lane) {
    return __shfl_sync(0xffffffff, value, lane);
}

__device__ __forceinline__ float of_lane(float value, int lane) {
    return __shfl_sync(0xffffffff, value, lane);
}

// One of several barriers that whole warps pass without waiting, and others wait at until all
// THREADS came.
template <int BARRIER, int THREADS> __device__ __forceinline__ void pass() {
    asm volatile("bar.arrive %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

template <int BARRIER, int THREADS> __device__ __forceinline__ void wait_at() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// A warp: all that it read or wrote until now is done when others see the number, in shared memory.
__device__ __forceinline__ void tell(int *at, int number) {
    __syncwarp();
    __threadfence_block();
    *(volatile int *)at = number;
}

// Until such a number is `least` or more.
__device__ __forceinline__ void wait_for(const int *at, int least) {
    while (*(const volatile int *)at < least)
        ;
    __threadfence_block();
}

// What the lane gave whose number differs in these bits.
__device__ __forceinline__ float of_lane_across(float value, int bits) {
    return __shfl_xor_sync(0xffffffff, value, bits);
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

// The next kernel in the stream, if it may start early, may do so from now on.
__device__ __forceinline__ void let_next_kernel_begin() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the kernel before in the stream is done and what it wrote can be read.
__device__ __forceinline__ void wait_for_kernels_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The matrix so many bytes after, a multiple of 16.
__device__ __forceinline__ u64 shared_matrix_after(u64 matrix, int bytes) {
    return matrix + (bytes >> 4);
}

// c += A B of four warps, or c = A B, for 8 to 64 columns. Each warp has 16 rows of A and c that
// lie as in `multiply`, eight columns after eight. Until `wait_for_batches` c and A's registers
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

// Products begun since the last call are one batch.
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until all but the last LEFT batches are done.
template <int LEFT> __device__ __forceinline__ void wait_for_batches() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// After the wait: the compiler has a result of `multiply_together` from here on, not from there.
__device__ __forceinline__ void settle(float &result) {
    asm volatile("" : "+f"(result)::"memory");
}

// What this thread stored to shared memory is there for `multiply_together`, after a barrier.
__device__ __forceinline__ void show_to_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Two half-precision numbers in a word.
__device__ __forceinline__ u32 pack_half(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// a b + c, a b and a - b of each of two half-precision numbers, rounded once.
__device__ __forceinline__ u32 multiply_add_half(u32 a, u32 b, u32 c) {
    u32 word;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
    return word;
}

__device__ __forceinline__ u32 multiply_half(u32 a, u32 b) {
    u32 word;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

__device__ __forceinline__ u32 subtract_half(u32 a, u32 b) {
    u32 word;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

// The larger of each of two unsigned numbers of 16 bits.
__device__ __forceinline__ u32 larger_of_each(u32 a, u32 b) {
    u32 word;
    asm("max.u16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

// The largest of a warp's numbers.
__device__ __forceinline__ u32 most_of_warp(u32 number) {
    return __reduce_max_sync(0xffffffff, number);
}

// `multiply` of half-precision numbers.
__device__ __forceinline__ void multiply_halves(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3,
                                                u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float inverse_root(float value) {
    float root;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(value));
    return root;
}

// 16 bytes that no kernel writes and that are read once.
__device__ __forceinline__ uint4 load_vector(const char *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

// BYTES (1, 2 or 4) that no kernel writes, as the low ones of a word.
template <int BYTES> __device__ __forceinline__ u32 load_word(const char *from) {
    u32 word;
    if (BYTES == 1)
        asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(word) : "l"(from));
    else if (BYTES == 2) {
        u16 narrow;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(narrow) : "l"(from));
        word = narrow;
    } else
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(from));
    return word;
}

// Which of a cluster's CLUSTER_BLOCKS of threads this one is.
template <int CLUSTER_BLOCKS> __device__ __forceinline__ int rank_in_cluster() {
    u32 rank = 0;
    if (CLUSTER_BLOCKS > 1)
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Until all threads of the cluster come here; what they wrote before can be read.
template <int CLUSTER_BLOCKS> __device__ __forceinline__ void meet_cluster() {
    if (CLUSTER_BLOCKS > 1)
        asm volatile("barrier.cluster.arrive.release.aligned;\n"
                     "barrier.cluster.wait.acquire.aligned;" ::: "memory");
    else
        __syncthreads();
}

// Until all threads of the cluster have read what they wanted.
template <int CLUSTER_BLOCKS> __device__ __forceinline__ void meet_cluster_again() {
    if (CLUSTER_BLOCKS > 1)
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                     "barrier.cluster.wait.aligned;" ::: "memory");
    else
        __syncthreads();
}

// From the shared memory of a block of the cluster: what has this address in one's own.
template <int CLUSTER_BLOCKS>
__device__ __forceinline__ float4 load_of_block(const float4 *at, int rank) {
    if (CLUSTER_BLOCKS == 1)
        return *at;
    u32 own = (u32)__cvta_generic_to_shared(at), there;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there)
                 : "memory");
    return v;
}
