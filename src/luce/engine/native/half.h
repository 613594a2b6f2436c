/* float16 to float32 and back without help of the processor; rounds to nearest even. */
#ifndef LUCE_HALF_H
#define LUCE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float half_value(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    /* The exponent is 112 smaller; a product with 2^112 also makes subnormals normal. */
    float value = float_of_bits(magnitude << 13) * 0x1p112f;
    return float_of_bits(bits_of_float(value) | sign);
}

static inline uint16_t half_bits(float value) {
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    if (magnitude < 0x38800000) {
        /* Adding 0.5 puts the last kept bit at the last bit of the sum, and it is rounded. */
        return sign | (uint16_t)(bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return sign | (uint16_t)((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

#endif
