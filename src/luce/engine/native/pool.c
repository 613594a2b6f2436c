/* Threads that run a program: a list of operations, each in chunks that any thread may take.
 *
 * Every thread walks through the operations by itself: it takes chunks of one until none is left,
 * waits until all are done, and goes on. Nobody hands work out, so a thread that the system has
 * put aside delays the others by the chunk it holds and no more: they spin for some microseconds and
 * then sleep. One that comes late finds the work done and catches up.
 *
 * Counters carry the number of the run, and count down: one that comes very late takes nothing of a
 * later run, nor more of its own than there was. Whatever else the pool holds may be another run's
 * by then; only who has a chunk, or waits for one, may rely on it.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_OPS 4096
#define SPINS_IN_RUN 2000
#define SPINS_BETWEEN 4000

typedef struct {
    _Alignas(64) _Atomic uint64_t left;   /* run << 32 | chunks that nobody has taken */
    _Alignas(64) _Atomic uint64_t undone; /* run << 32 | chunks that are not done */
    int32_t chunks;
} phase_state;

static struct {
    _Atomic int32_t threads; /* the caller's included */
    int32_t workers; /* threads that were started */
    _Atomic uint32_t run; /* number of the run; futex that idle threads wait on */
    _Atomic int32_t sleepers;
    _Atomic int32_t parked; /* threads that sleep until an operation is done */
    _Atomic int32_t num_ops; /* of the latest run: one that comes late may see it */
    const luce_kernels *kernels;
    luce_step step;
    luce_op ops[MAX_OPS];
    phase_state phases[MAX_OPS];
} pool = {.threads = 1};
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int take(phase_state *phase, uint32_t run, int32_t *chunk) {
    uint64_t left = atomic_load_explicit(&phase->left, memory_order_relaxed);
    for (;;) {
        if (left >> 32 != run || (uint32_t)left == 0) return 0;
        if (atomic_compare_exchange_weak_explicit(&phase->left, &left, left - 1,
                                                  memory_order_acquire, memory_order_relaxed)) {
            /* In order. The run does not end before this chunk is done. */
            *chunk = phase->chunks - (int32_t)(uint32_t)left;
            return 1;
        }
    }
}

/* The half of `undone` that counts. */
static uint32_t *count_word(phase_state *phase) {
    return (uint32_t *)&phase->undone + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* Sleep until an operation is done, unless something was done since `undone` was read. Whoever
 * holds the last chunk was put aside by the system, which gives it this core once that is idle;
 * a thread that merely yields looks busy, and keeps it.
 */
static void park(phase_state *phase, uint64_t undone) {
    atomic_fetch_add(&pool.parked, 1);
    syscall(SYS_futex, count_word(phase), FUTEX_WAIT_PRIVATE, (uint32_t)undone, NULL, NULL, 0);
    atomic_fetch_sub(&pool.parked, 1);
}

/* One chunk less to do; the last wakes who sleeps. */
static void finish(phase_state *phase) {
    uint64_t before = atomic_fetch_sub(&phase->undone, 1);
    if ((uint32_t)before == 1 && atomic_load(&pool.parked) > 0) {
        syscall(SYS_futex, count_word(phase), FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

/* Whether the operation is finished; 0 also when the whole run is. */
static int wait_until_done(phase_state *phase, uint32_t run) {
    for (int spins = 0;; spins++) {
        uint64_t undone = atomic_load_explicit(&phase->undone, memory_order_acquire);
        if (undone >> 32 != run) return 0;
        if ((uint32_t)undone == 0) return 1;
        if (spins < SPINS_IN_RUN) relax();
        else park(phase, undone);
    }
}

static void walk(uint32_t run) {
    int32_t num_ops = atomic_load_explicit(&pool.num_ops, memory_order_relaxed);
    for (int32_t index = 0; index < num_ops; index++) {
        phase_state *phase = &pool.phases[index];
        int32_t chunk;
        while (take(phase, run, &chunk)) {
            pool.kernels->run(&pool.ops[index], &pool.step, chunk, phase->chunks);
            finish(phase);
        }
        if (!wait_until_done(phase, run)) return;
    }
}

static void wait_for_run(uint32_t last) {
    for (int spins = 0; spins < SPINS_BETWEEN; spins++) {
        if (atomic_load_explicit(&pool.run, memory_order_acquire) != last) return;
        relax();
    }
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.run) == last) {
        syscall(SYS_futex, &pool.run, FUTEX_WAIT_PRIVATE, last, NULL, NULL, 0);
    }
    atomic_fetch_sub(&pool.sleepers, 1);
}

static void *work(void *number) {
    int32_t index = (int32_t)(intptr_t)number;
    uint32_t last = atomic_load(&pool.run);
    for (;;) {
        wait_for_run(last);
        last = atomic_load_explicit(&pool.run, memory_order_acquire);
        if (index < pool.threads) walk(last);
    }
    return NULL;
}

int32_t luce_pool_start(int32_t threads) {
    if (threads < 1) threads = 1;
    pthread_mutex_lock(&busy);
    while (pool.workers < threads - 1) {
        pthread_t thread;
        void *number = (void *)(intptr_t)(pool.workers + 1);
        if (pthread_create(&thread, NULL, work, number) != 0) break;
        pthread_detach(thread);
        pool.workers++;
    }
    pool.threads = threads < pool.workers + 1 ? threads : pool.workers + 1;
    int32_t started = pool.threads;
    pthread_mutex_unlock(&busy);
    return started;
}

static void run_part(const luce_op *ops, int32_t num_ops, const luce_step *step,
                     const luce_kernels *kernels) {
    uint32_t run = atomic_load_explicit(&pool.run, memory_order_relaxed) + 1;
    for (int32_t index = 0; index < num_ops; index++) {
        phase_state *phase = &pool.phases[index];
        phase->chunks = kernels->count(&ops[index], step, pool.threads);
        uint64_t all = (uint64_t)run << 32 | (uint32_t)phase->chunks;
        atomic_store_explicit(&phase->left, all, memory_order_relaxed);
        atomic_store_explicit(&phase->undone, all, memory_order_relaxed);
    }
    memcpy(pool.ops, ops, (size_t)num_ops * sizeof(luce_op));
    atomic_store_explicit(&pool.num_ops, num_ops, memory_order_relaxed);
    pool.step = *step;
    pool.kernels = kernels;
    /* Published to threads that have no part in it, too: they must see that they have none. */
    atomic_store(&pool.run, run);
    if (pool.threads > 1 && atomic_load(&pool.sleepers) > 0) {
        /* All: of those that sleep some may have no part in it, and they must not be woken instead. */
        syscall(SYS_futex, &pool.run, FUTEX_WAKE_PRIVATE, pool.workers, NULL, NULL, 0);
    }
    walk(run);
}

void luce_pool_run(const luce_op *ops, int32_t num_ops, const luce_step *step,
                   const luce_kernels *kernels) {
    pthread_mutex_lock(&busy);
    for (int32_t first = 0; first < num_ops; first += MAX_OPS) {
        int32_t count = num_ops - first < MAX_OPS ? num_ops - first : MAX_OPS;
        run_part(ops + first, count, step, kernels);
    }
    pthread_mutex_unlock(&busy);
}
