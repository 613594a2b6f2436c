// What quant_split.cu asks of the processor beyond primitives.cuh and hopper.cuh. Tests have the
// same name for a host (tests/support/bulk_emulation.hpp).

// Begin to copy bytes, a multiple of 16 and aligned so, to shared memory.
__device__ __forceinline__ void copy_bulk(char *to, const char *from, int nbytes, u64 *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(nbytes), "r"(shared_address(barrier))
                 : "memory");
}
