/* What keys and values are stored as: encoded when they are placed, decoded 64 keys at a time.
 *
 * Codes and scales are those of `ops/kv_cache.py`. Keys of a head lie number by number, [W, P],
 * and so do their scales, [D / 32, P]; values lie token by token, [P, W] and [P, D / 32].
 */

static inline vf load_bfloats(const uint16_t *from) { return (vf)(load_words(from) << 16); }

/* Bytes of a head of one token. */
static inline int32_t head_bytes(int32_t type, int32_t dim) {
    switch (type) {
    case LUCE_KV_F32: return 4 * dim;
    case LUCE_KV_F16:
    case LUCE_KV_BF16: return 2 * dim;
    case LUCE_KV_Q8: return dim;
    default: return dim / 2;
    }
}

static inline uint16_t bfloat_bits(float value) {
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* scale = largest magnitude / 127; a group with what is no number has no number as its scale. */
static uint16_t encode_q8(const float *values, uint8_t *codes) {
    float largest = 0, nothing = 0;
    for (int each = 0; each < LUCE_GROUP; each++) {
        largest = fabsf(values[each]) > largest ? fabsf(values[each]) : largest;
        nothing += values[each] * 0.0f;
    }
    uint16_t scale = half_bits(largest / 127.0f + nothing);
    float wide = half_value(scale), inverse = wide != 0 ? 1.0f / wide : 0;
    for (int each = 0; each < LUCE_GROUP; each++) {
        float code = nearbyintf(values[each] * inverse);
        codes[each] = (uint8_t)(int8_t)(code > 127 ? 127 : code >= -127 ? code : -127);
    }
    return scale;
}

/* scale = the number of largest magnitude / -8; byte j holds numbers j and j + 16. */
static uint16_t encode_q4(const float *values, uint8_t *codes) {
    float lowest = values[0], highest = values[0], nothing = 0;
    for (int each = 0; each < LUCE_GROUP; each++) {
        lowest = values[each] < lowest ? values[each] : lowest;
        highest = values[each] > highest ? values[each] : highest;
        nothing += values[each] * 0.0f;
    }
    uint16_t scale = half_bits((highest > -lowest ? highest : lowest) / -8.0f + nothing);
    float wide = half_value(scale), inverse = wide != 0 ? 1.0f / wide : 0;
    for (int each = 0; each < LUCE_GROUP; each++) {
        float code = floorf(values[each] * inverse + 8.5f);
        uint8_t nibble = (uint8_t)(code > 15 ? 15 : code >= 0 ? code : 0);
        if (each < 16) codes[each] = nibble;
        else codes[each - 16] = (uint8_t)(codes[each - 16] | nibble << 4);
    }
    return scale;
}

static void encode_head(int32_t type, const float *values, int32_t dim, uint8_t *codes,
                        uint16_t *scales) {
    for (int32_t each = 0; each < dim && (type == LUCE_KV_F16 || type == LUCE_KV_BF16); each++) {
        uint16_t bits = type == LUCE_KV_F16 ? half_bits(values[each]) : bfloat_bits(values[each]);
        memcpy(codes + 2 * each, &bits, 2);
    }
    for (int32_t group = 0; group < dim / LUCE_GROUP; group++) {
        const float *from = values + LUCE_GROUP * group;
        if (type == LUCE_KV_Q8) scales[group] = encode_q8(from, codes + LUCE_GROUP * group);
        if (type == LUCE_KV_Q4) scales[group] = encode_q4(from, codes + LUCE_GROUP / 2 * group);
    }
    if (type == LUCE_KV_F32) memcpy(codes, values, 4 * (size_t)dim);
}

INLINE void scatter(uint8_t *to, const uint8_t *from, int32_t count, int32_t stride, int bytes) {
    for (int32_t each = 0; each < count; each++) {
        memcpy(to + (int64_t)each * stride * bytes, from + each * bytes, (size_t)bytes);
    }
}

/* A head's key to column `offset` of its block. */
static void put_key(const luce_cache *cache, uint8_t *to, uint16_t *scales, int32_t offset,
                    const float *key, int32_t dim) {
    uint8_t codes[4 * LUCE_MOST_HEAD_DIM];
    uint16_t own[LUCE_MOST_HEAD_DIM / LUCE_GROUP];
    int32_t tokens = cache->block_tokens;
    encode_head(cache->key_type, key, dim, codes, own);
    switch (cache->key_type) {
    case LUCE_KV_F32: scatter(to + 4 * offset, codes, dim, tokens, 4); return;
    case LUCE_KV_F16:
    case LUCE_KV_BF16: scatter(to + 2 * offset, codes, dim, tokens, 2); return;
    case LUCE_KV_Q8: scatter(to + offset, codes, dim, tokens, 1); break;
    default: scatter(to + offset, codes, dim / 2, tokens, 1); break;
    }
    for (int32_t group = 0; group < dim / LUCE_GROUP; group++) {
        scales[(int64_t)group * tokens + offset] = own[group];
    }
}

/* Plain numbers of any count that is a multiple of LANES. */
static void decode_plain(int32_t type, const uint8_t *from, int32_t count, float *to) {
    const uint16_t *halves = (const uint16_t *)from;
    for (int32_t each = 0; each < count; each += LANES) {
        vf values = type == LUCE_KV_F16 ? load_halves(halves + each) : load_bfloats(halves + each);
        store_f(to + each, values);
    }
}

/* Numbers first and first + 16 of a group, or first alone where a byte has one code. */
INLINE void decode_codes(int32_t type, const uint8_t *from, vf scale, float *low, float *high) {
    vi codes = load_signed((const int8_t *)from);
    if (type == LUCE_KV_Q8) {
        store_f(low, to_float(codes) * scale);
        return;
    }
    store_f(low, to_float((codes & 15) - 8) * scale);
    store_f(high, to_float((codes >> 4 & 15) - 8) * scale);
}

/* A block's keys of a head: [D, P]. */
INLINE void decode_keys(int32_t type, const uint8_t *from, const uint16_t *scales, int32_t dim,
                        int32_t tokens, float *to) {
    const int each_byte = type == LUCE_KV_Q8 ? 1 : 2;
    for (int32_t group = 0; group < dim / LUCE_GROUP; group++) {
        for (int32_t token = 0; token < tokens; token += LANES) {
            vf scale = load_halves(scales + group * tokens + token);
            float *low = to + (int64_t)LUCE_GROUP * group * tokens + token;
            for (int32_t row = 0; row < LUCE_GROUP / each_byte; row++) {
                const uint8_t *codes = from + (LUCE_GROUP / each_byte * group + row) * tokens + token;
                decode_codes(type, codes, scale, low + row * tokens, low + (row + 16) * tokens);
            }
        }
    }
}

/* A block's values of a head: [P, D]. */
INLINE void decode_values(int32_t type, const uint8_t *from, const uint16_t *scales, int32_t dim,
                          int32_t tokens, float *to) {
    const int bytes = type == LUCE_KV_Q8 ? 32 : 16;
    for (int32_t group = 0; group < tokens * dim / LUCE_GROUP; group++) {
        vf scale = all_f(half_value(scales[group]));
        for (int32_t byte = 0; byte < bytes; byte += LANES) {
            float *low = to + LUCE_GROUP * group + byte;
            decode_codes(type, from + bytes * group + byte, scale, low, low + 16);
        }
    }
}

static void decode_block(int32_t type, const uint8_t *from, const uint16_t *scales, int32_t dim,
                         int32_t tokens, int is_value, float *to) {
    if (type == LUCE_KV_F16 || type == LUCE_KV_BF16) decode_plain(type, from, dim * tokens, to);
    else if (type == LUCE_KV_Q8 && is_value) decode_values(LUCE_KV_Q8, from, scales, dim, tokens, to);
    else if (type == LUCE_KV_Q8) decode_keys(LUCE_KV_Q8, from, scales, dim, tokens, to);
    else if (is_value) decode_values(LUCE_KV_Q4, from, scales, dim, tokens, to);
    else decode_keys(LUCE_KV_Q4, from, scales, dim, tokens, to);
}
