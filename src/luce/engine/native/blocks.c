/* Stored GGUF blocks, taken apart into codes, scales and offsets.
 *
 * Block layouts: ggml's definitions. Codes are unsigned; what is taken from them is the layout's
 * `zero`. Scales and offsets are for 32 columns, or 16 where the type has those.
 */
#include "blocks.h"

#include <math.h>

static uint16_t half_at(const uint8_t *from) { return (uint16_t)(from[0] | from[1] << 8); }
static float value_at(const uint8_t *from) { return half_value(half_at(from)); }

static void nibble_halves(const uint8_t *packed, uint8_t *codes) {
    for (int each = 0; each < 16; each++) {
        codes[each] = packed[each] & 15;
        codes[16 + each] = packed[each] >> 4;
    }
}

static void fifth_bits(const uint8_t *packed, uint8_t *codes) {
    for (int each = 0; each < 32; each++) codes[each] |= (packed[each / 8] >> each % 8 & 1) << 4;
}

static void q4_0(const uint8_t *block, luce_codes *out) {
    out->scales[0] = value_at(block);
    nibble_halves(block + 2, out->codes);
}

static void q4_1(const uint8_t *block, luce_codes *out) {
    out->scales[0] = value_at(block);
    out->offsets[0] = value_at(block + 2);
    nibble_halves(block + 4, out->codes);
}

static void q5_0(const uint8_t *block, luce_codes *out) {
    out->scales[0] = value_at(block);
    nibble_halves(block + 6, out->codes);
    fifth_bits(block + 2, out->codes);
}

static void q5_1(const uint8_t *block, luce_codes *out) {
    out->scales[0] = value_at(block);
    out->offsets[0] = value_at(block + 2);
    nibble_halves(block + 8, out->codes);
    fifth_bits(block + 4, out->codes);
}

static void q8_0(const uint8_t *block, luce_codes *out) {
    out->scales[0] = value_at(block);
    for (int each = 0; each < 32; each++) out->codes[each] = block[2 + each] ^ 128;
}

static void mxfp4(const uint8_t *block, luce_codes *out) {
    out->scales[0] = ldexpf(1.0f, block[0] - 128);
    nibble_halves(block + 1, out->codes);
}

/* Byte l of a half holds elements l, 32 + l, 64 + l and 96 + l of it. */
static void two_bits(const uint8_t *packed, uint8_t *codes) {
    for (int each = 0; each < 256; each++) {
        codes[each] = packed[each / 128 * 32 + each % 32] >> (each % 128 / 32 * 2) & 3;
    }
}

static void q2_k(const uint8_t *block, luce_codes *out) {
    float scale = value_at(block + 80), minimum = value_at(block + 82);
    two_bits(block + 16, out->codes);
    for (int each = 0; each < 16; each++) {
        out->scales[each] = scale * (float)(block[each] & 15);
        out->offsets[each] = -minimum * (float)(block[each] >> 4);
    }
}

static void q3_k(const uint8_t *block, luce_codes *out) {
    const uint8_t *packed = block + 96;
    float scale = value_at(block + 108);
    two_bits(block + 32, out->codes);
    for (int each = 0; each < 256; each++) {
        out->codes[each] |= (block[each % 32] >> each / 32 & 1) << 2;
    }
    for (int each = 0; each < 16; each++) {
        int low = packed[each % 8] >> (each / 8 * 4) & 15;
        int high = packed[8 + each % 4] >> (each / 4 * 2) & 3;
        out->scales[each] = scale * (float)((low | high << 4) - 32);
    }
}

/* The 8 six-bit scales and minima of Q4_K and Q5_K. */
static void k_scales(const uint8_t *block, luce_codes *out) {
    const uint8_t *packed = block + 4;
    float scale = value_at(block), minimum = value_at(block + 2);
    for (int each = 0; each < 4; each++) {
        const uint8_t *at = packed + each;
        out->scales[each] = scale * (float)(at[0] & 63);
        out->offsets[each] = -minimum * (float)(at[4] & 63);
        out->scales[4 + each] = scale * (float)((at[8] & 15) | at[0] >> 6 << 4);
        out->offsets[4 + each] = -minimum * (float)(at[8] >> 4 | at[4] >> 6 << 4);
    }
}

static void chunk_nibbles(const uint8_t *packed, uint8_t *codes) {
    for (int each = 0; each < 256; each++) {
        codes[each] = packed[each / 64 * 32 + each % 32] >> (each / 32 % 2 * 4) & 15;
    }
}

static void q4_k(const uint8_t *block, luce_codes *out) {
    k_scales(block, out);
    chunk_nibbles(block + 16, out->codes);
}

static void q5_k(const uint8_t *block, luce_codes *out) {
    k_scales(block, out);
    chunk_nibbles(block + 48, out->codes);
    for (int each = 0; each < 256; each++) {
        out->codes[each] |= (block[16 + each % 32] >> each / 32 & 1) << 4;
    }
}

static void q6_k(const uint8_t *block, luce_codes *out) {
    const uint8_t *high = block + 128;
    float scale = value_at(block + 208);
    for (int each = 0; each < 256; each++) {
        int half = each / 128, within = each % 128, part = within / 32;
        uint8_t low = block[64 * half + within % 64] >> (part / 2 * 4) & 15;
        uint8_t top = high[32 * half + within % 32] >> (2 * part) & 3;
        out->codes[each] = low | top << 4;
    }
    for (int each = 0; each < 16; each++) {
        out->scales[each] = scale * (float)(int8_t)block[192 + each];
    }
}

static void iq4_xs(const uint8_t *block, luce_codes *out) {
    float scale = value_at(block);
    int high = half_at(block + 2);
    for (int each = 0; each < 8; each++) {
        int low = block[4 + each / 2] >> (each % 2 * 4) & 15;
        out->scales[each] = scale * (float)((low | (high >> 2 * each & 3) << 4) - 32);
        nibble_halves(block + 8 + 16 * each, out->codes + 32 * each);
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* By GGUF's number of the type. */
static const luce_block_type types[] = {
    {2, 32, 18, 0, 8, NULL, q4_0},
    {3, 32, 20, LUCE_OFFSET, 0, NULL, q4_1},
    {6, 32, 22, LUCE_BYTES, 16, NULL, q5_0},
    {7, 32, 24, LUCE_BYTES | LUCE_OFFSET, 0, NULL, q5_1},
    {8, 32, 34, LUCE_BYTES, 128, NULL, q8_0},
    {10, 256, 84, LUCE_HALVES | LUCE_OFFSET, 0, NULL, q2_k},
    {11, 256, 110, LUCE_HALVES, 4, NULL, q3_k},
    {12, 256, 144, LUCE_OFFSET, 0, NULL, q4_k},
    {13, 256, 176, LUCE_BYTES | LUCE_OFFSET, 0, NULL, q5_k},
    {14, 256, 210, LUCE_BYTES | LUCE_HALVES, 32, NULL, q6_k},
    {20, 32, 18, LUCE_TABLE, 128, iq4_values, q4_0},
    {23, 256, 136, LUCE_TABLE, 128, iq4_values, iq4_xs},
    {39, 32, 17, LUCE_TABLE, 128, e2m1_doubled, mxfp4},
};

const luce_block_type *luce_type(int32_t number) {
    for (size_t index = 0; index < sizeof types / sizeof types[0]; index++) {
        if (types[index].number == number) return &types[index];
    }
    return NULL;
}
