/* What the files of the native library share: matrices, activations, operations, steps.
 *
 * Glossary: a tile is 16 rows of a matrix, a group 32 of its columns, a quad 4 neighbouring
 * columns. A step is one batch of tokens; an operation runs over all of them in chunks, and
 * every chunk can be computed by any thread.
 */
#ifndef LUCE_NATIVE_H
#define LUCE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define LUCE_API __attribute__((visibility("default")))

#define LUCE_TILE 16
#define LUCE_GROUP 32
#define LUCE_SEGMENT 64 /* keys that attention looks at together */
#define LUCE_SPAN 256 /* keys that are attended to by themselves: what threads share of a row */
#define LUCE_UNIT_ROWS 64 /* most query rows, tokens times heads, of a unit of attention */
#define LUCE_MANY_ROWS 12 /* rows from which on they are the lanes, and their sums whole tiles */
#define LUCE_MOST_HEAD_DIM 256 /* numbers of a head that is attended to */
#define LUCE_PARTS 4

/* How a matrix's codes lie in memory. */
enum {
    LUCE_BYTES = 1,    /* a byte a code instead of a nibble */
    LUCE_HALVES = 2,   /* a scale for 16 columns instead of 32 */
    LUCE_OFFSET = 4,   /* value = scale * code + offset instead of scale * (code - zero) */
    LUCE_TABLE = 8,    /* a nibble is an index of `table` */
};

/* A matrix [rows, columns] in tiles.
 *
 * A tile holds its groups one after the other, each with its codes, scales and offsets, so that
 * memory is read from front to back. Codes of a group: 64 bytes for each pair of quads, 4 for each
 * row, low nibbles the first quad and high ones the second; or 64 bytes for each quad. Scales and
 * offsets: 16 float16 for the group, or for each of its halves.
 */
typedef struct {
    int32_t rows, columns, tiles, format, zero, group_bytes;
    int64_t tile_bytes;
    uint8_t *data;
    float *row_factors; /* f32 [tiles * 16], or NULL for 1 */
    uint8_t table[16];  /* values of the codes, plus 128 */
} luce_matrix;

static inline int32_t luce_code_bytes(int32_t format) { return format & LUCE_BYTES ? 512 : 256; }

/* Matrices that share their input; their outputs lie side by side. */
typedef struct {
    int32_t num_parts;
    luce_matrix parts[LUCE_PARTS];
    const float *bias; /* f32 [all rows], or NULL */
} luce_linear;

/* What a product needs to know of 32 activations besides their codes: value = scale * code. */
typedef struct {
    float scale, weighted, weighted_half[2]; /* weighted: scale * sum of codes */
    int32_t sum, sum_half[2], unused;
} luce_group;

/* Activations [tokens, columns] rounded to 15 bits of the largest of their group.
 *
 * A code is 128 * high + low, two signed bytes: a group's 32 high ones, then its 32 low ones. With
 * 8 bits two of three greedy answers of a small model differ from those of float32.
 */
typedef struct {
    int32_t columns;
    int8_t *codes; /* [tokens, 2 * columns] */
    luce_group *groups; /* [tokens, columns / 32] */
} luce_rows;

typedef struct {
    int32_t num_heads, num_kv_heads, head_dim, rotary_dim, interleaved;
} luce_heads;

/* How keys or values are stored: `kv_types.h`. */
enum { LUCE_KV_F32, LUCE_KV_F16, LUCE_KV_BF16, LUCE_KV_Q8, LUCE_KV_Q4 };

/* A layer's cache: where its first block has keys [K, W, P] and values [K, P, W], and the scales of
 * those that have some; `block_bytes` on is the next block. */
typedef struct {
    uint8_t *keys, *values;
    uint16_t *key_scales, *value_scales;
    int64_t block_bytes;
    int32_t block_tokens, key_type, value_type;
} luce_cache;

/* One batch of tokens. A unit of attention is a run of one sequence's tokens. */
typedef struct {
    int32_t num_tokens, num_units;
    const int32_t *input_ids;     /* [tokens] */
    const float *rotary;          /* [tokens, R/2, 2]: cosine and sine */
    const int64_t *slots;         /* [tokens]: block * P + offset */
    const int32_t *unit_tokens;   /* [units]: its first token */
    const int32_t *unit_counts;   /* [units]: its tokens */
    const int32_t *unit_lengths;  /* [units]: keys its first token sees */
    const int32_t *unit_tables;   /* [units]: where its blocks begin in `blocks` */
    const int32_t *blocks;
    const int32_t *starts;        /* [sequences + 1]: where their tokens begin */
    const int32_t *state_slots;   /* [sequences]: whose states they advance */
    int32_t num_sequences;
    /* Pieces of attention: a unit with all its keys, or one of its spans. */
    int32_t num_pieces;
    const int32_t *piece_units;   /* [pieces] */
    const int32_t *piece_spans;   /* [pieces]: the span, -1 for all; those of a unit in order */
    int32_t *arrivals;            /* [units, K]: pieces that are done; 0 between operations */
    float *partials;              /* [pieces, K, partial_rows, D + 2]: of single spans */
    int32_t partial_rows;         /* of the largest unit, from LUCE_MANY_ROWS on in whole tiles */
} luce_step;

enum {
    LUCE_EMBED,    /* out = rows of the linear's first part */
    LUCE_NORM,     /* out = norm(in) */
    LUCE_QUANTISE, /* out_rows = in, or norm(in) if there is a weight */
    LUCE_PRODUCT,  /* out = linear(in_rows), plus `in` if that is there */
    LUCE_GATED,    /* out_rows = silu(gate) * up of linear(in_rows); `out` too if it is there */
    LUCE_PLACE,    /* norms and rotates q and k of `out` in place, writes k and v to the cache */
    LUCE_ATTEND,   /* out = attention of `in`; out_rows too if they are there */
    LUCE_CHOOSE,   /* tokens of `choices` by the logits in `out`, which are overwritten */
    LUCE_OPS,
};

/* How a row's token is chosen, and which it is: -1 where the logits are not numbers. */
typedef struct {
    double top_p, uniform;
    float temperature, min_p; /* temperature 0: the largest */
    int32_t top_k, token;
} luce_choice;

typedef struct {
    int32_t kind, width;
    float eps, unused;
    const luce_linear *linear;
    const float *in;
    float *out;
    const luce_rows *in_rows;
    const luce_rows *out_rows;
    const float *weight, *key_weight;
    luce_heads heads;
    luce_cache cache;
    const void *more; /* of operations in layers.h */
    luce_choice *choices;
} luce_op;

/* The kernels of one instruction set. */
typedef struct {
    const char *name;
    /* Chunks an operation is cut into for a step and so many threads. */
    int32_t (*count)(const luce_op *op, const luce_step *step, int32_t threads);
    void (*run)(const luce_op *op, const luce_step *step, int32_t chunk, int32_t chunks);
} luce_kernels;

/* The best level, or the one of that name; NULL if this machine does not have it. */
LUCE_API const luce_kernels *luce_level(const char *name);

#endif
