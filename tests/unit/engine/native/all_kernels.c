/* Runs every kernel at every level on random input; built with sanitizers by its test.
 *
 * All memory is of exactly the size it has to be, so that whatever reads or writes beyond it is
 * found. Prints the number of operations that ran.
 */
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

/* Two sequences, one of `tokens` tokens after 37 others and one of a single token. */
static void attention(const luce_kernels *kernels, int32_t tokens, int32_t interleaved) {
    int32_t all = tokens + 1, before = 37, most = LUCE_UNIT_ROWS / (HEADS / KV_HEADS);
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
    float *cache = floats((size_t)NUM_BLOCKS * 2 * KV_HEADS * DIM * BLOCK_TOKENS);
    float *packed = floats((size_t)all * PACKED), *rotary = floats((size_t)all * DIM);
    float *out = floats((size_t)all * HEADS * DIM), *weight = floats(DIM);
    luce_rows rows = rounded(all, HEADS * DIM);
    luce_heads heads = {HEADS, KV_HEADS, DIM, DIM, interleaved};
    luce_cache place = {cache, BLOCK_TOKENS};
    luce_op ops[] = {
        {.kind = LUCE_PLACE, .eps = 1e-6f, .out = packed, .weight = interleaved ? weight : NULL,
         .key_weight = interleaved ? weight : NULL, .heads = heads, .cache = place},
        {.kind = LUCE_ATTEND, .in = packed, .out = out, .out_rows = &rows, .heads = heads,
         .cache = place},
    };
    luce_step step = {all, num_units, NULL, rotary, slots, units[0], units[1], units[2], units[3], blocks};
    luce_pool_run(ops, 2, &step, kernels);
    operations += 2;
    for (int each = 0; each < 4; each++) free(units[each]);
    free(blocks), free(slots), free(cache), free(packed), free(rotary), free(out), free(weight);
    free_rows(&rows);
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
            attention(kernels, tokens[count], count % 2);
        }
    }
    printf("%ld\n", operations);
    return 0;
}
