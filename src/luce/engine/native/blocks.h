/* The block types of GGUF files. */
#ifndef LUCE_BLOCKS_H
#define LUCE_BLOCKS_H

#include "half.h"
#include "native.h"

/* A block taken apart; as many entries as the type has. */
typedef struct {
    uint8_t codes[256];
    float scales[16], offsets[16];
} luce_codes;

typedef struct {
    int32_t number, elements, bytes, format, zero;
    const int8_t *table; /* values of the codes, or NULL */
    void (*take_apart)(const uint8_t *block, luce_codes *out);
} luce_block_type;

/* NULL for a type that is not known. */
const luce_block_type *luce_type(int32_t number);

#endif
