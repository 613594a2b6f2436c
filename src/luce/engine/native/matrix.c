/* From stored blocks to tiles.
 *
 * Codes are kept as they are. Scales and offsets are rounded to float16; where they are products
 * (the two-level types) a power of two for each row keeps them in its range, so that the error is
 * at most 2^-11 of a scale. Types with a float16 scale lose nothing.
 */
#include "matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t halves_of(int32_t format) { return format & LUCE_HALVES ? 2 : 1; }

static int64_t scales_each(const luce_matrix *matrix) {
    return (int64_t)matrix->columns / (matrix->format & LUCE_HALVES ? 16 : 32);
}

int luce_matrix_layout(luce_matrix *matrix, int32_t type, int32_t rows, int32_t columns) {
    const luce_block_type *kind = luce_type(type);
    if (kind == NULL || rows <= 0 || columns <= 0 || columns % kind->elements) return -1;
    memset(matrix, 0, sizeof *matrix);
    matrix->rows = rows;
    matrix->columns = columns;
    matrix->tiles = (rows + LUCE_TILE - 1) / LUCE_TILE;
    matrix->format = kind->format;
    matrix->zero = kind->zero;
    int32_t halfs = halves_of(kind->format) * (kind->format & LUCE_OFFSET ? 2 : 1) * LUCE_TILE;
    matrix->group_bytes = luce_code_bytes(kind->format) + 2 * halfs;
    matrix->tile_bytes = (int64_t)columns / LUCE_GROUP * matrix->group_bytes;
    for (int index = 0; kind->table != NULL && index < 16; index++) {
        matrix->table[index] = (uint8_t)(kind->table[index] + 128);
    }
    return 0;
}

typedef struct {
    uint8_t *codes;
    float *scales, *offsets;
} row_parts;

static void read_row(const luce_block_type *kind, const uint8_t *raw, int32_t columns,
                     row_parts row) {
    int width = kind->format & LUCE_HALVES ? 16 : 32, each = kind->elements / width;
    luce_codes block = {0};
    for (int32_t index = 0; index < columns / kind->elements; index++) {
        kind->take_apart(raw + (int64_t)index * kind->bytes, &block);
        memcpy(row.codes + index * kind->elements, block.codes, (size_t)kind->elements);
        memcpy(row.scales + index * each, block.scales, (size_t)each * sizeof(float));
        memcpy(row.offsets + index * each, block.offsets, (size_t)each * sizeof(float));
    }
}

/* 1 where float16 holds all numbers, else a power of two that brings the largest to 2^10. */
static float row_factor(const float *scales, const float *offsets, int64_t count) {
    float largest = 0;
    int is_exact = 1;
    for (int64_t index = 0; index < count; index++) {
        for (int side = 0; side < 2; side++) {
            float value = side ? offsets[index] : scales[index];
            if (!isfinite(value)) return 1.0f;
            if (half_value(half_bits(value)) != value) is_exact = 0;
            if (fabsf(value) > largest) largest = fabsf(value);
        }
    }
    if (is_exact) return 1.0f;
    int exponent;
    frexpf(largest, &exponent);
    exponent -= 10;
    /* Its inverse must be a number, too. */
    return ldexpf(1.0f, exponent < -120 ? -120 : exponent > 120 ? 120 : exponent);
}

static void put_codes(const luce_matrix *matrix, uint8_t *to, int32_t lane, const uint8_t *codes) {
    for (int quad = 0; quad < 8; quad++) {
        if (matrix->format & LUCE_BYTES) {
            memcpy(to + 64 * quad + 4 * lane, codes + 4 * quad, 4);
            continue;
        }
        uint8_t *pair = to + 64 * (quad / 2) + 4 * lane;
        for (int byte = 0; byte < 4; byte++) {
            uint8_t code = codes[4 * quad + byte];
            pair[byte] = quad % 2 ? (uint8_t)(pair[byte] | code << 4) : code;
        }
    }
}

static void put_row(luce_matrix *matrix, int32_t row, row_parts parts) {
    uint8_t *group = matrix->data + row / LUCE_TILE * matrix->tile_bytes;
    int32_t lane = row % LUCE_TILE, halves = halves_of(matrix->format);
    float factor = row_factor(parts.scales, parts.offsets, scales_each(matrix));
    matrix->row_factors[row] = factor;
    for (int32_t index = 0; index < matrix->columns / LUCE_GROUP; index++) {
        put_codes(matrix, group, lane, parts.codes + LUCE_GROUP * index);
        uint16_t *scales = (uint16_t *)(group + luce_code_bytes(matrix->format)) + lane;
        for (int half = 0; half < halves; half++) {
            int32_t at = halves * index + half;
            scales[LUCE_TILE * half] = half_bits(parts.scales[at] / factor);
            if (matrix->format & LUCE_OFFSET) {
                scales[LUCE_TILE * (halves + half)] = half_bits(parts.offsets[at] / factor);
            }
        }
        group += matrix->group_bytes;
    }
}

int luce_matrix_fill(luce_matrix *matrix, int32_t type, const uint8_t *raw, int32_t first,
                     int32_t rows) {
    const luce_block_type *kind = luce_type(type);
    size_t columns = (size_t)matrix->columns, count = (size_t)scales_each(matrix);
    uint8_t *codes = malloc(columns);
    float *scales = calloc(2 * count, sizeof(float));
    if (codes == NULL || scales == NULL) {
        free(codes);
        free(scales);
        return -1;
    }
    row_parts parts = {codes, scales, scales + count};
    int64_t row_bytes = (int64_t)matrix->columns / kind->elements * kind->bytes;
    for (int32_t row = 0; row < rows; row++) {
        read_row(kind, raw + row * row_bytes, matrix->columns, parts);
        put_row(matrix, first + row, parts);
    }
    free(codes);
    free(scales);
    return 0;
}
