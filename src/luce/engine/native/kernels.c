/* The kernels of one instruction set; compiled once for each, with its flags. */
#include "native.h"
#include "layers.h"
#include "level.h"

#include <float.h>
#include <math.h>

#include "half.h"
#include "product.h"
#include "kv_types.h"
#include "pointwise.h"
#include "attention_unit.h"
#include "attention_few.h"
#include "attention_many.h"
#include "attention.h"
#include "choose.h"
#include "gates.h"
#include "recurrent.h"
#include "experts.h"

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define QUOTE(a) #a
#define NAME(a) QUOTE(a)

static int32_t count_chunks(const luce_op *op, const luce_step *step, int32_t threads) {
    if (step->num_tokens < 1) return 0;
    switch (op->kind) {
    case LUCE_PRODUCT:
    case LUCE_GATED:
        return product_chunks(op, step->num_tokens, threads);
    case LUCE_ATTEND:
        return step->num_pieces * op->heads.num_kv_heads;
    case LUCE_DENSE: return dense_chunks(op);
    case LUCE_CONVOLVE: return step->num_sequences * conv_blocks(op->more);
    case LUCE_RECUR: return step->num_sequences * ((const luce_delta *)op->more)->value_heads;
    case LUCE_GROUP_ROWS: return 1;
    case LUCE_EXPERT_GATED: return gated_chunks(op, step->num_tokens, threads);
    case LUCE_EXPERT_DOWN: return down_chunks(op, threads);
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
    case LUCE_CHOOSE: choose(op, first, stop); break;
    case LUCE_DENSE: dense(op, step->num_tokens, chunk); break;
    case LUCE_ROUNDED_NORM: rounded_norm(op, first, stop); break;
    case LUCE_SPLIT_GATES: split_gates(op, first, stop); break;
    case LUCE_GATE_HEADS: gate_heads(op, first, stop); break;
    case LUCE_SILU_MUL: silu_mul(op, first, stop); break;
    case LUCE_CONVOLVE: convolve(op, step, chunk); break;
    case LUCE_RECUR: recur(op, step, chunk); break;
    case LUCE_ROUTE: route(op, first, stop); break;
    case LUCE_GROUP_ROWS: group_rows(op, step->num_tokens); break;
    case LUCE_EXPERT_GATED: expert_gated(op, step->num_tokens, chunk, chunks); break;
    case LUCE_EXPERT_DOWN: expert_down(op, step->num_tokens, chunk, chunks); break;
    case LUCE_ADD_MIXTURE: add_mixture(op, first, stop); break;
    default: break;
    }
}

extern const luce_kernels NAMED(luce_kernels_, LEVEL);
const luce_kernels NAMED(luce_kernels_, LEVEL) = {NAME(LEVEL), count_chunks, run_chunk};
