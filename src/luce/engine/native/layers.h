/* What operations of hybrids and mixtures know beside the fields of `luce_op`: its `more`. */
#ifndef LUCE_LAYERS_H
#define LUCE_LAYERS_H

#include "native.h"

enum {
    LUCE_DENSE = 32,  /* columns of out = luce_dense times in */
    LUCE_ROUNDED_NORM, /* out = norm(in), out_rows too */
    LUCE_SPLIT_GATES, /* out = queries | keys | values of `in`, where a gate follows each query */
    LUCE_GATE_HEADS,  /* out = out * sigmoid(gates of `in`), out_rows too */
    LUCE_SILU_MUL,    /* out = silu(left half of in) * right half, out_rows too */
    LUCE_CONVOLVE,    /* luce_delta: out = silu(convolution of in); advances conv_states */
    LUCE_RECUR,       /* luce_delta: out, out_rows = gated norm of the recurrence; states advance */
    LUCE_ROUTE,       /* luce_mixture: chosen, weights, loads of logits `in` */
    LUCE_GROUP_ROWS,  /* luce_mixture: order */
    LUCE_EXPERT_GATED, /* luce_mixture: out_rows [tokens * k] in order = silu(gate) * up of in_rows */
    LUCE_EXPERT_DOWN, /* luce_mixture: out = sum of weight * linear(in_rows) of a token's experts */
    LUCE_ADD_MIXTURE, /* luce_shared: out += in + sigmoid(gate) * shared */
};

#define LUCE_MOST_DIM 256    /* numbers of a key, and of a value, of a linear layer */
#define LUCE_MOST_TAPS 8     /* width of its convolution */
#define LUCE_MOST_EXPERTS 1024
#define LUCE_MOST_EXPERT_COLUMNS 32768 /* of what goes into an expert: a few rows are on the stack */

/* A plain matrix [rows, columns]; columns are whole groups of 32. */
typedef struct {
    int32_t rows, columns;
    const float *data;
} luce_dense;

/* A gated DeltaNet layer: `ops/gated_delta.py`. */
typedef struct {
    int32_t key_heads, value_heads, key_dim, value_dim, conv_width, is_tiled;
    const float *taps;           /* [W, C], oldest input first */
    const float *decay, *dt_bias; /* [Hv] */
    const float *norm;           /* [Dv] */
    const float *mixed;          /* [tokens, C], what LUCE_RECUR reads of the convolution */
    float *conv_states;          /* [slots, (W - 1) * C] */
    float *states;               /* [slots, Hv * Dk * Dv] */
    int64_t conv_stride, state_stride; /* numbers from a slot to the next */
} luce_delta;

/* A mixture's choice. `order`: where each expert's entries begin [E + 1], how many experts have
 * any, those experts [E], and all entries token * k + place by expert [tokens * k]. */
typedef struct {
    int32_t num_experts, num_chosen, norm_weights, logits_stride;
    int64_t *chosen; /* [tokens, k] */
    float *weights;  /* [tokens, k] */
    int64_t *loads;  /* [E] */
    int32_t *order;
} luce_mixture;

/* The shared expert's result [tokens, hidden] and its gate's logits; NULL without it. */
typedef struct {
    const float *shared, *gate;
    int64_t gate_stride;
} luce_shared;

#endif
