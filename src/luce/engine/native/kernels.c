/* The kernels of one instruction set; compiled once for each, with its flags. */
#include "native.h"
#include "level.h"

#include <math.h>

#include "half.h"
#include "product.h"
#include "pointwise.h"
#include "attention.h"

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define QUOTE(a) #a
#define NAME(a) QUOTE(a)

static int32_t count_chunks(const luce_op *op, const luce_step *step, int32_t threads) {
    switch (op->kind) {
    case LUCE_PRODUCT:
    case LUCE_GATED:
        return product_chunks(op, step->num_tokens, threads);
    case LUCE_ATTEND:
        return step->num_units * op->heads.num_kv_heads;
    default:
        return rows_chunks(step->num_tokens, threads);
    }
}

static void run_chunk(const luce_op *op, const luce_step *step, int32_t chunk, int32_t chunks) {
    int32_t first = (int32_t)((int64_t)step->num_tokens * chunk / chunks);
    int32_t stop = (int32_t)((int64_t)step->num_tokens * (chunk + 1) / chunks);
    switch (op->kind) {
    case LUCE_EMBED: embed(op, step, first, stop); break;
    case LUCE_NORM: norm(op, first, stop); break;
    case LUCE_QUANTISE: quantise(op, first, stop); break;
    case LUCE_PRODUCT: product(op, step->num_tokens, chunk, chunks); break;
    case LUCE_GATED: gated(op, step->num_tokens, chunk, chunks); break;
    case LUCE_PLACE: place(op, step, first, stop); break;
    case LUCE_ATTEND: attend(op, step, chunk); break;
    default: break;
    }
}

extern const luce_kernels NAMED(luce_kernels_, LEVEL);
const luce_kernels NAMED(luce_kernels_, LEVEL) = {NAME(LEVEL), count_chunks, run_chunk};
