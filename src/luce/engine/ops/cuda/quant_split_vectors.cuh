// x of a block of threads in shared memory: its columns of all tokens, as they were staged. Units
// come one after another, each past a barrier of its own.

struct Vectors {
    char *x;
    u64 *barriers;

    // All threads.
    __device__ __forceinline__ void begin(int units) const {
        if (threadIdx.x == 0) {
            for (int unit = 0; unit < units; ++unit)
                init_barrier(barriers + unit, 1);
            show_barriers();
        }
        __syncthreads();
    }
    __device__ __forceinline__ void fill(const Problem &p, int first_unit, int units) const {
        const char *from = p.x + (i64)first_unit * X_UNIT;
        if (threadIdx.x == 0)
            for (int unit = 0; unit < units; ++unit) {
                expect_bytes(barriers + unit, X_UNIT);
                copy_bulk(x + unit * X_UNIT, from + unit * X_UNIT, X_UNIT, barriers + unit);
            }
    }
    __device__ __forceinline__ void wait(int unit) const { wait_for(barriers + unit, 0); }
};
