/* Runs every kernel at every level on random input; built with sanitizers by its test.
 *
 * All memory is of exactly the size it has to be, so that whatever reads or writes beyond it is
 * found. Prints the number of operations that ran.
 */
#include "layers.h"
#include "matrix.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 256
#define HEADS 6
#define KV_HEADS 2
#define DIM 32
#define BLOCK_TOKENS 16
#define PACKED ((HEADS + 2 * KV_HEADS) * DIM)
#define NUM_BLOCKS 24
#define KV_TYPES 5

static uint32_t state = 1;
static long operations;

static uint32_t noise(void) { return state = state * 1664525u + 1013904223u; }

static void *room(size_t nbytes) {
    void *memory = malloc(nbytes ? nbytes : 1);
    if (memory == NULL) abort();
    return memory;
}

static float *floats(size_t count) {
    float *values = room(count * sizeof(float));
    for (size_t index = 0; index < count; index++) {
        values[index] = (float)(int32_t)noise() / 1e9f;
    }
    return values;
}

static luce_matrix matrix(int32_t type, int32_t rows, int32_t columns) {
    luce_matrix made;
    if (luce_matrix_layout(&made, type, rows, columns)) abort();
    const luce_block_type *kind = luce_type(type);
    size_t nbytes = (size_t)rows * (size_t)(columns / kind->elements * kind->bytes);
    uint8_t *raw = room(nbytes);
    for (size_t index = 0; index < nbytes; index++) raw[index] = (uint8_t)(noise() >> 24);
    made.data = room((size_t)(made.tiles * made.tile_bytes));
    memset(made.data, 0, (size_t)(made.tiles * made.tile_bytes));
    made.row_factors = floats((size_t)made.tiles * LUCE_TILE);
    if (luce_matrix_fill(&made, type, raw, 0, rows)) abort();
    free(raw);
    return made;
}

static luce_rows rounded(int32_t tokens, int32_t columns) {
    size_t count = (size_t)tokens * (size_t)columns;
    return (luce_rows){columns, room(2 * count), room(count / LUCE_GROUP * sizeof(luce_group))};
}

static void free_matrix(luce_matrix *made) {
    free(made->data);
    free(made->row_factors);
}

static void free_rows(luce_rows *rows) {
    free(rows->codes);
    free(rows->groups);
}

/* Table, norm, product with residual, gate, and the last product of a layer. */
static void products(const luce_kernels *kernels, int32_t type, int32_t tokens) {
    luce_linear square = {.num_parts = 1, .parts = {matrix(type, HIDDEN, HIDDEN)}};
    luce_linear odd = {.num_parts = 2, .parts = {matrix(type, 33, HIDDEN), matrix(8, 7, HIDDEN)}};
    luce_linear gate = {.num_parts = 2,
                        .parts = {matrix(type, 96, HIDDEN), matrix(type, 96, HIDDEN)}};
    odd.bias = floats(40);
    int32_t *ids = room((size_t)tokens * sizeof *ids);
    for (int32_t each = 0; each < tokens; each++) ids[each] = (int32_t)(noise() % HIDDEN);
    float *hidden = floats((size_t)tokens * HIDDEN), *weight = floats(HIDDEN);
    float *out = floats((size_t)tokens * 40), *gated = floats((size_t)tokens * 96);
    luce_rows in = rounded(tokens, HIDDEN), middle = rounded(tokens, 96);
    luce_op ops[] = {
        {.kind = LUCE_EMBED, .width = HIDDEN, .linear = &square, .out = hidden},
        {.kind = LUCE_NORM, .width = HIDDEN, .eps = 1e-5f, .in = hidden, .out = hidden,
         .weight = weight},
        {.kind = LUCE_QUANTISE, .width = HIDDEN, .eps = 1e-5f, .in = hidden, .out_rows = &in,
         .weight = weight},
        {.kind = LUCE_PRODUCT, .width = HIDDEN, .linear = &square, .in = hidden, .in_rows = &in,
         .out = hidden},
        {.kind = LUCE_QUANTISE, .width = HIDDEN, .in = hidden, .out_rows = &in},
        {.kind = LUCE_PRODUCT, .width = 40, .linear = &odd, .in_rows = &in, .out = out},
        {.kind = LUCE_GATED, .linear = &gate, .in_rows = &in, .out = gated, .out_rows = &middle},
    };
    luce_step step = {.num_tokens = tokens, .input_ids = ids};
    luce_pool_run(ops, sizeof ops / sizeof ops[0], &step, kernels);
    operations += (long)(sizeof ops / sizeof ops[0]);
    free_matrix(&square.parts[0]);
    for (int part = 0; part < 2; part++) free_matrix(&odd.parts[part]), free_matrix(&gate.parts[part]);
    free((void *)odd.bias), free(ids), free(hidden), free(weight), free(out), free(gated);
    free_rows(&in), free_rows(&middle);
}

/* A cache whose last byte is the last of its memory. */
static luce_cache cache_of(int32_t key_type, int32_t value_type, uint8_t **memory) {
    const int32_t bytes[KV_TYPES] = {4 * DIM, 2 * DIM, 2 * DIM, DIM, DIM / 2};
    const int64_t tokens = KV_HEADS * BLOCK_TOKENS, scales = tokens * (DIM / LUCE_GROUP) * 2;
    int64_t keys = tokens * bytes[key_type], values = tokens * bytes[value_type];
    int64_t key_scales = key_type >= LUCE_KV_Q8 ? scales : 0;
    int64_t value_scales = value_type >= LUCE_KV_Q8 ? scales : 0;
    int64_t all = keys + values + key_scales + value_scales;
    *memory = room((size_t)(NUM_BLOCKS * all));
    for (int64_t byte = 0; byte < NUM_BLOCKS * all; byte++) (*memory)[byte] = (uint8_t)(noise() >> 24);
    uint8_t *behind = *memory + keys + values;
    uint16_t *first = (uint16_t *)(key_scales ? behind : *memory);
    uint16_t *second = (uint16_t *)(value_scales ? behind + key_scales : *memory);
    return (luce_cache){*memory, *memory + keys, first, second, all, BLOCK_TOKENS, key_type, value_type};
}

/* Pieces of all units: whole ones, or each span by itself. */
static int32_t cut(const luce_step *step, int is_shared, int32_t *units, int32_t *spans) {
    int32_t count = 0;
    for (int32_t unit = 0; unit < step->num_units; unit++) {
        int32_t length = step->unit_lengths[unit] + step->unit_counts[unit] - 1;
        int32_t all = is_shared && length > LUCE_SPAN ? (length + LUCE_SPAN - 1) / LUCE_SPAN : 0;
        for (int32_t span = all ? 0 : -1; span < all; span++) {
            units[count] = unit;
            spans[count++] = span;
        }
    }
    return count;
}

/* Two sequences, one of `tokens` tokens after others and one of a single token. */
static void attention(const luce_kernels *kernels, int32_t tokens, int32_t key_type,
                      int32_t value_type) {
    int32_t interleaved = tokens % 2, before = tokens > 100 ? 37 : 300;
    int32_t all = tokens + 1, most = LUCE_UNIT_ROWS / (HEADS / KV_HEADS);
    int32_t num_units = (tokens + most - 1) / most + 1;
    int32_t *units[4], *blocks = room(NUM_BLOCKS * sizeof *blocks);
    for (int each = 0; each < 4; each++) units[each] = room((size_t)num_units * sizeof **units);
    for (int32_t index = 0; index < num_units; index++) {
        int is_single = index == num_units - 1, first = is_single ? tokens : index * most;
        int left = is_single ? 1 : tokens - first;
        units[0][index] = first;
        units[1][index] = left < most ? left : most;
        units[2][index] = is_single ? 1 : before + first + 1;
        units[3][index] = is_single ? NUM_BLOCKS - 1 : 0;
    }
    for (int32_t each = 0; each < NUM_BLOCKS; each++) blocks[each] = NUM_BLOCKS - 1 - each;
    int64_t *slots = room((size_t)all * sizeof *slots);
    for (int32_t token = 0; token < tokens; token++) {
        int32_t position = before + token;
        slots[token] = (int64_t)blocks[position / BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS;
    }
    slots[tokens] = 0;
    uint8_t *memory;
    luce_cache place = cache_of(key_type, value_type, &memory);
    float *packed = floats((size_t)all * PACKED), *rotary = floats((size_t)all * DIM);
    float *out = floats((size_t)all * HEADS * DIM), *weight = floats(DIM);
    luce_rows rows = rounded(all, HEADS * DIM);
    luce_heads heads = {HEADS, KV_HEADS, DIM, DIM, interleaved};
    luce_op ops[] = {
        {.kind = LUCE_PLACE, .eps = 1e-6f, .out = packed, .weight = interleaved ? weight : NULL,
         .key_weight = interleaved ? weight : NULL, .heads = heads, .cache = place},
        {.kind = LUCE_ATTEND, .in = packed, .out = out, .out_rows = &rows, .heads = heads,
         .cache = place},
    };
    int32_t pieces[2][3 * NUM_BLOCKS];
    luce_step step = {.num_tokens = all, .num_units = num_units, .rotary = rotary, .slots = slots,
                      .unit_tokens = units[0], .unit_counts = units[1], .unit_lengths = units[2],
                      .unit_tables = units[3], .blocks = blocks, .piece_units = pieces[0],
                      .piece_spans = pieces[1]};
    step.num_pieces = cut(&step, tokens < 10, pieces[0], pieces[1]);
    step.partial_rows = units[1][0] * (HEADS / KV_HEADS);
    if (step.partial_rows >= LUCE_MANY_ROWS) {
        step.partial_rows = (step.partial_rows + LUCE_TILE - 1) / LUCE_TILE * LUCE_TILE;
    }
    size_t slot = (size_t)step.partial_rows * (DIM + 2);
    step.partials = room((size_t)step.num_pieces * KV_HEADS * slot * sizeof(float));
    step.arrivals = room((size_t)num_units * KV_HEADS * sizeof(int32_t));
    memset(step.arrivals, 0, (size_t)num_units * KV_HEADS * sizeof(int32_t));
    luce_pool_run(ops, 2, &step, kernels);
    operations += 2;
    for (int each = 0; each < 4; each++) free(units[each]);
    free(blocks), free(slots), free(memory), free(packed), free(rotary), free(out), free(weight);
    free(step.partials), free(step.arrivals);
    free_rows(&rows);
}

#define KEYS 2
#define VALUES 6
#define KEY_DIM 16
#define VALUE_DIM 32
#define CHANNELS (2 * KEYS * KEY_DIM + VALUES * VALUE_DIM)
#define PROJECTED (CHANNELS + VALUES * VALUE_DIM + 2 * VALUES)
#define TAPS 4

/* A gated DeltaNet layer on two sequences, one of `tokens` tokens and one of a single token. */
static void recurrence(const luce_kernels *kernels, int32_t tokens, int32_t is_tiled) {
    int32_t all = tokens + 1, *starts = room(3 * sizeof *starts), *slots = room(2 * sizeof *slots);
    starts[0] = 0, starts[1] = tokens, starts[2] = all;
    slots[0] = 2, slots[1] = 0;
    int64_t conv = (TAPS - 1) * CHANNELS, recurrent = VALUES * KEY_DIM * VALUE_DIM;
    float *taps = floats(TAPS * CHANNELS), *each_head = floats(2 * VALUES), *norm = floats(VALUE_DIM);
    float *conv_states = floats((size_t)(3 * conv)), *states = floats((size_t)(3 * recurrent));
    float *projected = floats((size_t)all * PROJECTED), *mixed = floats((size_t)all * CHANNELS);
    float *out = floats((size_t)all * VALUES * VALUE_DIM);
    luce_rows rows = rounded(all, VALUES * VALUE_DIM);
    luce_delta delta = {KEYS, VALUES, KEY_DIM, VALUE_DIM, TAPS, is_tiled, taps, each_head,
                        each_head + VALUES, norm, mixed, conv_states, states, conv, recurrent};
    luce_op ops[] = {
        {.kind = LUCE_CONVOLVE, .width = PROJECTED, .in = projected, .out = mixed, .more = &delta},
        {.kind = LUCE_RECUR, .width = PROJECTED, .eps = 1e-6f, .in = projected, .out = out,
         .out_rows = &rows, .more = &delta},
    };
    luce_step step = {.num_tokens = all, .starts = starts, .state_slots = slots, .num_sequences = 2};
    luce_pool_run(ops, 2, &step, kernels);
    operations += 2;
    free(starts), free(slots), free(taps), free(each_head), free(norm), free(conv_states);
    free(states), free(projected), free(mixed), free(out);
    free_rows(&rows);
}

/* Gates of attention, and of a feed-forward block. */
static void gates(const luce_kernels *kernels, int32_t tokens) {
    size_t rows = (size_t)tokens, queries = HEADS * DIM;
    float *projected = floats(rows * 2 * PACKED), *packed = floats(rows * PACKED);
    float *mixed = floats(rows * queries), *weight = floats(96), *out = floats(rows * 96);
    luce_rows of_heads = rounded(tokens, HEADS * DIM), of_gate = rounded(tokens, 96);
    luce_heads heads = {HEADS, KV_HEADS, DIM, DIM, 0};
    luce_op ops[] = {
        {.kind = LUCE_SPLIT_GATES, .in = projected, .out = packed, .heads = heads},
        {.kind = LUCE_GATE_HEADS, .in = projected, .out = mixed, .out_rows = &of_heads,
         .heads = heads},
        {.kind = LUCE_SILU_MUL, .width = 96, .in = mixed, .out = out, .out_rows = &of_gate},
        {.kind = LUCE_ROUNDED_NORM, .width = 96, .eps = 1e-6f, .in = out, .out = out,
         .out_rows = &of_gate, .weight = weight},
    };
    luce_step step = {.num_tokens = tokens};
    luce_pool_run(ops, 4, &step, kernels);
    operations += 4;
    free(projected), free(packed), free(mixed), free(weight), free(out);
    free_rows(&of_heads), free_rows(&of_gate);
}

#define EXPERTS 6
#define CHOSEN 3

/* A mixture with a shared expert's gate in its router, all of it. */
static void mixture(const luce_kernels *kernels, int32_t type, int32_t tokens) {
    size_t rows = (size_t)tokens, entries = rows * CHOSEN;
    luce_linear gate_up = {.num_parts = 2, .parts = {matrix(type, EXPERTS * HIDDEN, HIDDEN),
                                                     matrix(type, EXPERTS * HIDDEN, HIDDEN)}};
    luce_linear down = {.num_parts = 1, .parts = {matrix(type, EXPERTS * HIDDEN, HIDDEN)}};
    float *router = floats((EXPERTS + 1) * HIDDEN), *hidden = floats(rows * HIDDEN);
    float *logits = floats(rows * (EXPERTS + 1)), *weights = floats(entries);
    float *mixed = floats(rows * HIDDEN), *shared = floats(rows * HIDDEN);
    int64_t *chosen = room(entries * sizeof *chosen), *loads = room(EXPERTS * sizeof *loads);
    int32_t *order = room((2 * EXPERTS + 2 + entries) * sizeof *order);
    memset(loads, 0, EXPERTS * sizeof *loads);
    luce_rows in = rounded(tokens, HIDDEN), inner = rounded(tokens * CHOSEN, HIDDEN);
    luce_dense dense = {EXPERTS + 1, HIDDEN, router};
    luce_mixture mix = {EXPERTS, CHOSEN, 1, EXPERTS + 1, chosen, weights, loads, order};
    luce_shared with = {shared, logits + EXPERTS, EXPERTS + 1};
    luce_op ops[] = {
        {.kind = LUCE_QUANTISE, .width = HIDDEN, .in = hidden, .out_rows = &in},
        {.kind = LUCE_DENSE, .width = EXPERTS + 1, .in = hidden, .out = logits, .more = &dense},
        {.kind = LUCE_ROUTE, .in = logits, .more = &mix},
        {.kind = LUCE_GROUP_ROWS, .more = &mix},
        {.kind = LUCE_EXPERT_GATED, .width = HIDDEN, .linear = &gate_up, .in_rows = &in,
         .out_rows = &inner, .more = &mix},
        {.kind = LUCE_EXPERT_DOWN, .width = HIDDEN, .linear = &down, .in_rows = &inner,
         .out = mixed, .more = &mix},
        {.kind = LUCE_ADD_MIXTURE, .width = HIDDEN, .in = mixed, .out = hidden, .more = &with},
    };
    luce_step step = {.num_tokens = tokens};
    luce_pool_run(ops, 7, &step, kernels);
    operations += 7;
    free_matrix(&gate_up.parts[0]), free_matrix(&gate_up.parts[1]), free_matrix(&down.parts[0]);
    free(router), free(hidden), free(logits), free(weights), free(mixed), free(shared);
    free(chosen), free(loads), free(order);
    free_rows(&in), free_rows(&inner);
}

/* Every way to choose a token, of a vocabulary that fills no vector. */
static void choices(const luce_kernels *kernels, int32_t rows) {
    const int32_t vocabulary = 1003;
    float *logits = floats((size_t)rows * (size_t)vocabulary);
    luce_choice *wanted = room((size_t)rows * sizeof *wanted);
    for (int32_t row = 0; row < rows; row++) {
        wanted[row] = (luce_choice){row % 2 ? 0.9 : 1.0, (double)row / rows, row % 3 ? 0.7f : 0,
                                    row % 5 ? 0 : 0.1f, row % 4 ? 0 : 20, 0};
    }
    luce_op op = {.kind = LUCE_CHOOSE, .width = vocabulary, .out = logits, .choices = wanted};
    luce_step step = {.num_tokens = rows};
    luce_pool_run(&op, 1, &step, kernels);
    operations++;
    free(logits), free(wanted);
}

int main(void) {
    const char *levels[] = {"avx512", "avx2", "neon", "plain"};
    const int32_t types[] = {2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39};
    const int32_t tokens[] = {1, 3, 8, 21, 200};
    luce_pool_start(3);
    for (size_t level = 0; level < sizeof levels / sizeof levels[0]; level++) {
        const luce_kernels *kernels = luce_level(levels[level]);
        if (kernels == NULL) continue;
        for (int count = 0; count < 5; count++) {
            for (size_t type = 0; count < 4 && type < sizeof types / sizeof types[0]; type++) {
                products(kernels, types[type], tokens[count]);
            }
            for (int32_t type = 0; type < KV_TYPES; type++) {
                attention(kernels, tokens[count], type, (type + count) % KV_TYPES);
            }
            recurrence(kernels, tokens[count], count % 2);
            gates(kernels, tokens[count]);
            choices(kernels, tokens[count]);
            if (count < 4) mixture(kernels, count % 2 ? 8 : 12, tokens[count]);
        }
    }
    printf("%ld\n", operations);
    return 0;
}
