/* Vectors of the instruction set this file is compiled for. Everything that all compilers can
 * write for themselves is in GCC's vector types; here is what they cannot.
 *
 * LANES float32 a vector. A dot product of four neighbouring bytes takes codes as bytes of which
 * BYTE_BIAS was taken away: an instruction set without a product of unsigned 8-bit codes that
 * does not saturate takes signed ones.
 */
#ifndef LUCE_LEVEL_H
#define LUCE_LEVEL_H

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define LEVEL avx512
#define LANES 16
#elif defined(__AVX2__)
#define LEVEL avx2
#define LANES 8
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define LEVEL neon
#define LANES 4
#else
#define LEVEL plain
#define LANES 4
#endif

typedef float vf __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint8_t vb __attribute__((vector_size(4 * LANES), aligned(1)));

static inline vf load_f(const float *from) { return *(const vf *)from; }
static inline void store_f(float *to, vf values) { *(vf *)to = values; }
static inline vf all_f(float value) { return value - (vf){0}; }
static inline vi all_i(int32_t value) { return value - (vi){0}; }
static inline vf to_float(vi values) { return __builtin_convertvector(values, vf); }

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

#define BYTE_BIAS 0
static inline vb load_b(const uint8_t *from) { return (vb)_mm512_loadu_si512(from); }
static inline vb low_nibbles(vb codes) {
    return (vb)_mm512_and_si512((__m512i)codes, _mm512_set1_epi8(15));
}
static inline vb high_nibbles(vb codes) {
    return low_nibbles((vb)_mm512_srli_epi16((__m512i)codes, 4));
}
static inline vb table_of(const uint8_t *values) {
    return (vb)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
}
static inline vb look_up(vb table, vb nibbles) {
    return (vb)_mm512_shuffle_epi8((__m512i)table, (__m512i)nibbles);
}
static inline vi quad_of(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return (vi)_mm512_set1_epi32(word);
}
static inline vi dot_small(vi sum, vb codes, vi quad) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)quad);
}
static inline vi dot_bytes(vi sum, vb codes, vi quad) { return dot_small(sum, codes, quad); }
static inline vf load_halves(const uint16_t *from) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
static inline vf fma_f(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline vf max_f(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
static inline vi round_i(vf x) { return (vi)_mm512_cvtps_epi32((__m512)x); }
static inline void store_codes(int8_t *to, vi codes) {
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)codes));
}
static inline vi load_signed(const int8_t *from) {
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
}
static inline vi load_words(const uint16_t *from) {
    return (vi)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
}
static inline vf whole_f(vf x) { return (vf)_mm512_roundscale_ps((__m512)x, 8); }
/* y * 2^power, or 0 where x is below -126. */
static inline vf scaled_f(vf y, vf power, vf x) {
    __mmask16 is_kept = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(is_kept, (__m512)y, (__m512)power);
}
static inline float sum_of(vf values) { return _mm512_reduce_add_ps((__m512)values); }
static inline float max_of(vf values) { return _mm512_reduce_max_ps((__m512)values); }
static inline int32_t sum_of_i(vi values) { return _mm512_reduce_add_epi32((__m512i)values); }
static inline vi max_i(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
static inline int32_t max_of_i(vi values) { return _mm512_reduce_max_epi32((__m512i)values); }

#elif defined(__AVX2__)

#define BYTE_BIAS 128
static inline vb load_b(const uint8_t *from) {
    return (vb)_mm256_loadu_si256((const __m256i *)from);
}
static inline vb low_nibbles(vb codes) {
    return (vb)_mm256_and_si256((__m256i)codes, _mm256_set1_epi8(15));
}
static inline vb high_nibbles(vb codes) {
    return low_nibbles((vb)_mm256_srli_epi16((__m256i)codes, 4));
}
static inline vb table_of(const uint8_t *values) {
    return (vb)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
}
static inline vb look_up(vb table, vb nibbles) {
    return (vb)_mm256_shuffle_epi8((__m256i)table, (__m256i)nibbles);
}
static inline vi quad_of(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return (vi)_mm256_set1_epi32(word);
}
static inline vi dot_small(vi sum, vb codes, vi quad) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, (__m256i)quad);
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
/* The sign goes to the other factor, so that a sum of two products stays below 2^15. */
static inline vi dot_bytes(vi sum, vb codes, vi quad) {
    __m256i centred = _mm256_xor_si256((__m256i)codes, _mm256_set1_epi8((char)0x80));
    __m256i moved = _mm256_sign_epi8((__m256i)quad, centred);
    return dot_small(sum, (vb)_mm256_abs_epi8(centred), (vi)moved);
}
static inline vf load_halves(const uint16_t *from) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
static inline vf fma_f(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
static inline vf max_f(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vi round_i(vf x) { return (vi)_mm256_cvtps_epi32((__m256)x); }
static inline void store_codes(int8_t *to, vi codes) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)codes),
                                    _mm256_extracti128_si256((__m256i)codes, 1));
    _mm_storel_epi64((__m128i *)to, _mm_packs_epi16(words, words));
}
static inline vi load_signed(const int8_t *from) {
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
}
static inline vi load_words(const uint16_t *from) {
    return (vi)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}
static inline float sum_of(vf values) {
    __m128 low = _mm256_castps256_ps128((__m256)values);
    __m128 four = _mm_add_ps(low, _mm256_extractf128_ps((__m256)values, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return two[0] + two[1];
}
static inline float max_of(vf values) {
    __m128 low = _mm256_castps256_ps128((__m256)values);
    __m128 four = _mm_max_ps(low, _mm256_extractf128_ps((__m256)values, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return two[0] > two[1] ? two[0] : two[1];
}
static inline int32_t sum_of_i(vi values) {
    __m128i low = _mm256_castsi256_si128((__m256i)values);
    __m128i four = _mm_add_epi32(low, _mm256_extracti128_si256((__m256i)values, 1));
    __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}
static inline vi max_i(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
static inline int32_t max_of_i(vi values) {
    __m128i low = _mm256_castsi256_si128((__m256i)values);
    __m128i four = _mm_max_epi32(low, _mm256_extracti128_si256((__m256i)values, 1));
    __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_srli_epi64(two, 32)));
}

#else

static inline vb load_b(const uint8_t *from) { return *(const vb *)from; }
static inline vb low_nibbles(vb codes) { return codes & 15; }
static inline vb high_nibbles(vb codes) { return codes >> 4; }
static inline vb table_of(const uint8_t *values) { return *(const vb *)values; }
static inline vi quad_of(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return all_i(word);
}
#if defined(__ARM_FEATURE_DOTPROD)
#define BYTE_BIAS 128
static inline vb look_up(vb table, vb nibbles) {
    return (vb)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)nibbles);
}
static inline vi dot_small(vi sum, vb codes, vi quad) {
    return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)codes, (int8x16_t)quad);
}
static inline vi dot_bytes(vi sum, vb codes, vi quad) { return dot_small(sum, codes ^ 128, quad); }
static inline vf load_halves(const uint16_t *from) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}
static inline vf fma_f(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
static inline vf max_f(vf a, vf b) { return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
static inline vi round_i(vf x) { return (vi)vcvtnq_s32_f32((float32x4_t)x); }
#else
#include "half.h"
#include <math.h>
#define BYTE_BIAS 0
static inline vb look_up(vb table, vb nibbles) {
    vb out;
    for (int lane = 0; lane < 16; lane++) out[lane] = table[nibbles[lane]];
    return out;
}
static inline vi dot_small(vi sum, vb codes, vi quad) {
    const int8_t *factors = (const int8_t *)&quad;
    for (int lane = 0; lane < 16; lane++) sum[lane / 4] += codes[lane] * factors[lane];
    return sum;
}
static inline vi dot_bytes(vi sum, vb codes, vi quad) { return dot_small(sum, codes, quad); }
static inline vf load_halves(const uint16_t *from) {
    return (vf){half_value(from[0]), half_value(from[1]), half_value(from[2]), half_value(from[3])};
}
static inline vf fma_f(vf a, vf b, vf c) { return a * b + c; }
static inline vf max_f(vf a, vf b) {
    vi larger = a > b;
    return (vf)(((vi)a & larger) | ((vi)b & ~larger));
}
static inline vi round_i(vf x) {
    return (vi){(int32_t)lrintf(x[0]), (int32_t)lrintf(x[1]), (int32_t)lrintf(x[2]),
                (int32_t)lrintf(x[3])};
}
#endif
static inline void store_codes(int8_t *to, vi codes) {
    for (int lane = 0; lane < LANES; lane++) to[lane] = (int8_t)codes[lane];
}
static inline vi load_signed(const int8_t *from) { return (vi){from[0], from[1], from[2], from[3]}; }
static inline vi load_words(const uint16_t *from) { return (vi){from[0], from[1], from[2], from[3]}; }
static inline float sum_of(vf values) { return (values[0] + values[2]) + (values[1] + values[3]); }
static inline float max_of(vf values) {
    float even = values[0] > values[2] ? values[0] : values[2];
    float odd = values[1] > values[3] ? values[1] : values[3];
    return even > odd ? even : odd;
}
static inline int32_t sum_of_i(vi values) { return values[0] + values[1] + values[2] + values[3]; }
static inline vi max_i(vi a, vi b) {
    vi larger = a > b;
    return (a & larger) | (b & ~larger);
}
static inline int32_t max_of_i(vi values) {
    int32_t even = values[0] > values[2] ? values[0] : values[2];
    int32_t odd = values[1] > values[3] ? values[1] : values[3];
    return even > odd ? even : odd;
}

#endif

/* Four numbers of each of four rows, to columns `stride` apart. */
#if defined(__x86_64__)
static inline void transpose_four(const float *const *rows, float *to, int64_t stride) {
    __m128 a = _mm_loadu_ps(rows[0]), b = _mm_loadu_ps(rows[1]);
    __m128 c = _mm_loadu_ps(rows[2]), d = _mm_loadu_ps(rows[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + stride, b);
    _mm_storeu_ps(to + 2 * stride, c);
    _mm_storeu_ps(to + 3 * stride, d);
}
#else
static inline void transpose_four(const float *const *rows, float *to, int64_t stride) {
    for (int column = 0; column < 4; column++) {
        for (int row = 0; row < 4; row++) to[column * stride + row] = rows[row][column];
    }
}
#endif

#if LANES != 16
static inline vf whole_f(vf x) { return to_float(round_i(x)); }
static inline vf scaled_f(vf y, vf power, vf x) {
    vi is_low = x < all_f(-126.0f);
    vf scaled = y * (vf)((__builtin_convertvector(power, vi) + 127) << 23);
    return (vf)((vi)scaled & ~is_low);
}
#endif

/* `sum_of` adds a vector's upper half to its lower one, then that one's, and so on. */

/* e^x by Cephes' polynomial, within 2 units in the last place; 0 below -87, no number for none. */
static inline vf exp_f(vf x) {
    vi is_low = x < all_f(-87.0f), is_nan = x != x;
    vf given = x;
    x = -max_f(-x, all_f(-88.0f));
    x = max_f(x, all_f(-87.0f));
    vi power = round_i(x * 1.44269504088896341f);
    vf whole = to_float(power);
    vf rest = fma_f(whole, all_f(-0.693359375f), x);
    rest = fma_f(whole, all_f(2.12194440e-4f), rest);
    vf y = all_f(1.9875691500e-4f);
    y = fma_f(y, rest, all_f(1.3981999507e-3f));
    y = fma_f(y, rest, all_f(8.3334519073e-3f));
    y = fma_f(y, rest, all_f(4.1665795894e-2f));
    y = fma_f(y, rest, all_f(1.6666665459e-1f));
    y = fma_f(y, rest, all_f(5.0000001201e-1f));
    y = fma_f(y, rest * rest, rest + 1.0f);
    vf scaled = y * (vf)((power + 127) << 23);
    return (vf)(((vi)scaled & ~is_low & ~is_nan) | ((vi)given & is_nan));
}

/* 2^x for x up to 0, within 2 units in the last place; 0 below -126, no number for none. The
 * polynomial is 1 at 0 and has the least relative error there is between -1/2 and 1/2 (Remez).
 */
static inline vf power_of_two_f(vf x) {
    vf kept = max_f(all_f(-126.0f), x), whole = whole_f(kept), rest = kept - whole;
    vf y = all_f(1.3264727e-3f);
    y = fma_f(y, rest, all_f(9.6715126e-3f));
    y = fma_f(y, rest, all_f(5.5507337e-2f));
    y = fma_f(y, rest, all_f(2.4022242e-1f));
    y = fma_f(y, rest, all_f(6.9314698e-1f));
    y = fma_f(y, rest, all_f(1.0f));
    return scaled_f(y, whole, x);
}

static inline vf silu_f(vf x) { return x / (exp_f(-x) + 1.0f); }

#endif
