// What kernels for Hopper alone ask of the processor. Tests have the same names for a host
// (tests/support/hopper_emulation.hpp).

// What `encode_tensor_map` makes.
struct __align__(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ u32 shared_address(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}

// A barrier in shared memory that `count` arrivals, and what they expect, lead to its next phase.
__device__ __forceinline__ void init_barrier(u64 *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
}

__device__ __forceinline__ void arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrive, with so many bytes that copies are to bring.
__device__ __forceinline__ void expect_bytes(u64 *barrier, int nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(nbytes)
                 : "memory");
}

// Arrive when the copies that this thread began until now are there.
__device__ __forceinline__ void arrive_after_copies(u64 *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     shared_address(barrier))
                 : "memory");
}

// A warp's words to where products take them (`multiply_together`): lane 4i + t has words t of
// columns i, the indices 0 to 7 and 8 to 15 of one product and, SECOND bytes on, of another.
template <int SECOND> __device__ __forceinline__ void store_eight(char *to, uint4 v) {
    const int lane = threadIdx.x % 32;
    const u32 at = shared_address(to + lane % 16 * 16 + lane / 16 * SECOND);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// A matrix in shared memory as `multiply_together` takes it: 16 indices of the sums by columns in
// eights; of each eight columns first indices 0 to 7, then 8 to 15, 16 bytes a column.
// The same for all lanes of a warp.
__device__ __forceinline__ u64 shared_matrix_of_warp(const char *at) {
    // From one lane, so that the compiler keeps it once for the warp.
    const u32 low = __shfl_sync(~0u, (shared_address(at) & 0x3ffff) >> 4 | 128 >> 4 << 16, 0);
    return (u64)low | (u64)(256 >> 4) << 32;
}

// Until the phase of that parity is over.
__device__ __forceinline__ void wait_for(u64 *barrier, int parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.b32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

// PAGE tokens by 64 numbers of one head.
__device__ __forceinline__ void copy_page(const char *to, const TensorMap *map, int dim, int head,
                                          int block, u64 *barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
                 "l"(map), "r"(dim), "r"(head), "r"(0), "r"(block), "r"(shared_address(barrier))
                 : "memory");
}

// Rows of a matrix from `row` on, as many as its map's boxes have, by 64 numbers; zeros beyond its end.
__device__ __forceinline__ void copy_rows(const char *to, const TensorMap *map, int column, int row,
                                          u64 *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

// One lane of those of a warp that come here, and the compiler knows it: it makes no loops around
// instructions of which a warp has one.
__device__ __forceinline__ bool is_chosen() {
    u32 is;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}" : "=r"(is));
    return is;
}

// A map is about to be needed.
__device__ __forceinline__ void fetch_map(const TensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A swizzled matrix in shared memory, the same for all lanes of a warp; `columns` between its runs of
// 64 columns, if it is one whose rows are the sums' indices.
__device__ __forceinline__ u64 swizzled(const char *at, int columns) {
    // From one lane, so that the compiler keeps it once for the warp.
    // In a cluster an address has the block's number above those of its own memory.
    const u32 own = shared_address(at) & 0x3ffff;
    const u32 low = __shfl_sync(~0u, own >> 4 | columns >> 4 << 16, 0);
    return (u64)low | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The same so many bytes on.
__device__ __forceinline__ u64 advance(u64 matrix, int nbytes) { return matrix + (nbytes >> 4); }

// Until all but the last LEFT groups of products are done. Two PLACEs are not merged into one.
template <int LEFT, int PLACE = 0> __device__ __forceinline__ void wait_for_groups() {
    asm volatile("wgmma.wait_group.sync.aligned %0; // %1" ::"n"(LEFT), "n"(PLACE) : "memory");
}

// The products begun since the last are a group.
__device__ __forceinline__ void end_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// A barrier of some threads of the block.
__device__ __forceinline__ void sync_threads(int barrier, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

// The same without waiting.
__device__ __forceinline__ void join_threads(int barrier, int count) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

// To 1 in 2^23; 0 of what is too large.
__device__ __forceinline__ float reciprocal_of(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Barriers are as they were initialised, for copies too; before a barrier of all threads.
__device__ __forceinline__ void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    show_to_products();
}

// Four warps have COUNT registers a thread from here on: fewer than before, or more.
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A cluster's meeting in two parts: what threads did before the first, others see after the second.
template <int CLUSTER_BLOCKS> __device__ __forceinline__ void come_to_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

template <int CLUSTER_BLOCKS> __device__ __forceinline__ void wait_for_cluster() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What has this address in one's own shared memory, in that of a block of the cluster.
template <int CLUSTER_BLOCKS>
__device__ __forceinline__ u32 address_in_block(const void *at, int rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(shared_address(at)), "r"(rank));
    return there;
}

// Begin to store four numbers there; the barrier, of the same block, gets their 16 bytes.
template <int CLUSTER_BLOCKS>
__device__ __forceinline__ void store_in_block(u32 at, const float4 &v, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(at),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
}

// `wait_for` where what other blocks of the cluster stored leads to the next phase.
template <int CLUSTER_BLOCKS>
__device__ __forceinline__ void wait_for_stores(u64 *barrier, int parity) {
    u32 done = 0;
    while (!done)
        asm volatile("{.reg .pred p;"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
                     "selp.b32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}
