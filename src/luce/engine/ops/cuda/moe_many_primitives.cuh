// What mixtures of 5 to 16 tokens ask of the processor beyond the rest. Tests have the same names
// for a host (tests/support/moe_many_emulation.hpp).

// total + the two signed halves of `pair` times bytes 0 and 1, or 2 and 3, of `codes`.
__device__ __forceinline__ int dot_low(int pair, u32 codes, int total) {
    asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(total) : "r"(pair), "r"(codes));
    return total;
}

__device__ __forceinline__ int dot_high(int pair, u32 codes, int total) {
    asm("dp2a.hi.s32.u32 %0, %1, %2, %0;" : "+r"(total) : "r"(pair), "r"(codes));
    return total;
}

// Bits that any lane has.
__device__ __forceinline__ u32 any_of_warp(u32 bits) { return __reduce_or_sync(0xffffffff, bits); }

// `copy_bulk` of what is read once: the second-level cache, which has code and activations of all
// kernels, lets it go first.
__device__ __forceinline__ void copy_once(char *to, const char *from, int nbytes, u64 *barrier) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(nbytes), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}

// A number in shared memory for other warps; it says nothing of what else is there.
__device__ __forceinline__ void show_number(int *at, int number) {
    asm volatile("st.volatile.shared::cta.u32 [%0], %1;" ::"r"(shared_address(at)), "r"(number)
                 : "memory");
}

// Until a number is larger.
__device__ __forceinline__ void wait_for_more(const int *at, int number) {
    int seen;
    do
        asm volatile("ld.volatile.shared::cta.u32 %0, [%1];"
                     : "=r"(seen)
                     : "r"(shared_address(at))
                     : "memory");
    while (seen <= number);
}

// Say to other blocks of threads that what this warp wrote is there.
__device__ __forceinline__ void come(int *counter) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// Until so many have said so. Ends the kernel with an error where nothing comes for seconds.
__device__ __forceinline__ void wait_for_all(const int *counter, int count) {
    int seen, looks = 0;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
        if (++looks > 1 << 23)
            asm volatile("trap;");
    } while (seen < count);
}
