/* The process's threads. */
#ifndef LUCE_POOL_H
#define LUCE_POOL_H

#include "native.h"

/* Use so many threads, the caller's included; returns how many there are. */
LUCE_API int32_t luce_pool_start(int32_t threads);

/* Run the operations one after the other; returns when the last is done. */
LUCE_API void luce_pool_run(const luce_op *ops, int32_t num_ops, const luce_step *step,
                   const luce_kernels *kernels);

#endif
