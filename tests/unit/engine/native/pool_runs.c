/* Short runs, one behind the other, of few chunks and of some more in turn: whether each chunk is
 * run once. A thread that comes late to a run of few meets the beginning of one of more.
 *
 * Prints how many runs were not as they should be. Arguments: threads, runs.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "native.h"
#include "pool.h"

#define MOST_CHUNKS 8

static _Atomic int32_t times[MOST_CHUNKS + 1]; /* the last: of any that there should not be */

static int32_t count(const luce_op *op, const luce_step *step, int32_t threads) {
    (void)step, (void)threads;
    return op->width;
}

static void run(const luce_op *op, const luce_step *step, int32_t chunk, int32_t chunks) {
    (void)op, (void)step, (void)chunks;
    times[chunk >= 0 && chunk < MOST_CHUNKS ? chunk : MOST_CHUNKS]++;
}

static int is_wrong(int32_t chunks) {
    int wrong = 0;
    for (int32_t chunk = 0; chunk <= MOST_CHUNKS; chunk++) {
        if (atomic_exchange(&times[chunk], 0) != (chunk < chunks)) wrong = 1;
    }
    return wrong;
}

int main(int argc, char **argv) {
    static const luce_kernels kernels = {"counting", count, run};
    if (argc != 3) return 2;
    luce_pool_start(atoi(argv[1]));
    luce_step step = {0};
    long runs = atol(argv[2]), wrong = 0;
    for (long index = 0; index < runs; index++) {
        luce_op op = {.width = index % 2 ? 2 + (int32_t)(index / 2 % 5) : 1};
        luce_pool_run(&op, 1, &step, &kernels);
        wrong += is_wrong(op.width);
    }
    printf("%ld\n", wrong);
    return 0;
}
