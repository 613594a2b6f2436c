/* Matrices in tiles. */
#ifndef LUCE_MATRIX_H
#define LUCE_MATRIX_H

#include "blocks.h"

/* Everything but the memory of a matrix of a GGUF type. -1 if it cannot be one. */
LUCE_API int luce_matrix_layout(luce_matrix *matrix, int32_t type, int32_t rows, int32_t columns);

/* Put stored rows at rows first .. first + rows - 1. -1 if there is no memory. */
LUCE_API int luce_matrix_fill(luce_matrix *matrix, int32_t type, const uint8_t *raw, int32_t first,
                     int32_t rows);

#endif
