/* Operations that work token by token. */

static int32_t rows_chunks(int32_t tokens, int32_t threads) {
    return tokens < 4 * threads ? (tokens < threads ? 1 : threads) : 4 * threads;
}

#define MOST_CODE 16319 /* 128 * 127 + 63 */

/* Rounds 32 numbers; the scale is the largest magnitude / MOST_CODE. */
static void quantise_group(const float *values, int8_t *codes, luce_group *group) {
    /* Magnitudes are in order as integers, too, and what is no finite number above the others. */
    vi most = all_i(0);
    for (int lane = 0; lane < LUCE_GROUP; lane += LANES) {
        most = max_i(most, (vi)load_f(values + lane) & 0x7fffffff);
    }
    int32_t bits = max_of_i(most);
    float largest, none = NAN;
    memcpy(&largest, &bits, sizeof largest);
    float inverse = largest > 0 ? MOST_CODE / largest : 0, scale = largest / MOST_CODE;
    /* What is no finite number makes the whole group none, and so what is computed from it. */
    if (bits >= 0x7f800000) {
        memset(codes, 0, 2 * LUCE_GROUP);
        *group = (luce_group){.scale = none, .weighted = none, .weighted_half = {none, none}};
        return;
    }
    int32_t sums[2] = {0, 0};
    for (int lane = 0; lane < LUCE_GROUP; lane += LANES) {
        vi rounded = round_i(load_f(values + lane) * inverse);
        vi high = (rounded + 64) >> 7;
        store_codes(codes + lane, high);
        store_codes(codes + LUCE_GROUP + lane, rounded - (high << 7));
        sums[lane / 16] += sum_of_i(rounded);
    }
    int32_t sum = sums[0] + sums[1];
    *group = (luce_group){
        .scale = scale,
        .weighted = scale * (float)sum,
        .weighted_half = {scale * (float)sums[0], scale * (float)sums[1]},
        .sum = sum,
        .sum_half = {sums[0], sums[1]},
    };
}

/* What a row is multiplied by before its weights: rsqrt(mean(x^2) + eps). */
static float norm_scale(const float *row, int32_t width, float eps) {
    vf squares = all_f(0);
    int32_t column = 0;
    for (; column + LANES <= width; column += LANES) {
        vf x = load_f(row + column);
        squares = fma_f(x, x, squares);
    }
    float sum = sum_of(squares);
    for (; column < width; column++) sum += row[column] * row[column];
    return 1.0f / sqrtf(sum / (float)width + eps);
}

static void norm_row(const float *row, const float *weight, float *out, int32_t width, float eps) {
    float scale = norm_scale(row, width, eps);
    int32_t column = 0;
    for (; column + LANES <= width; column += LANES) {
        store_f(out + column, load_f(row + column) * scale * load_f(weight + column));
    }
    for (; column < width; column++) out[column] = row[column] * scale * weight[column];
}

static void norm(const luce_op *op, int32_t first, int32_t stop) {
    for (int64_t row = first; row < stop; row++) {
        norm_row(op->in + row * op->width, op->weight, op->out + row * op->width, op->width, op->eps);
    }
}

static void quantise(const luce_op *op, int32_t first, int32_t stop) {
    const luce_rows *rows = op->out_rows;
    int32_t groups = op->width / LUCE_GROUP;
    for (int64_t row = first; row < stop; row++) {
        const float *in = op->in + row * op->width;
        float scale = op->weight != NULL ? norm_scale(in, op->width, op->eps) : 1.0f;
        for (int32_t group = 0; group < groups; group++) {
            float values[LUCE_GROUP];
            const float *from = in + LUCE_GROUP * group;
            if (op->weight != NULL) {
                for (int lane = 0; lane < LUCE_GROUP; lane += LANES) {
                    vf weight = load_f(op->weight + LUCE_GROUP * group + lane);
                    store_f(values + lane, load_f(from + lane) * scale * weight);
                }
                from = values;
            }
            quantise_group(from, rows->codes + 2 * (row * op->width + LUCE_GROUP * group),
                           rows->groups + row * groups + group);
        }
    }
}

static int32_t code_at(const luce_matrix *matrix, const uint8_t *codes, int32_t lane,
                       int32_t column) {
    int32_t quad = column / 4, byte = column % 4;
    if (matrix->format & LUCE_BYTES) return codes[64 * quad + 4 * lane + byte] - matrix->zero;
    uint8_t pair = codes[64 * (quad / 2) + 4 * lane + byte];
    uint8_t code = quad % 2 ? pair >> 4 : pair & 15;
    if (matrix->format & LUCE_TABLE) return matrix->table[code] - matrix->zero;
    return code - matrix->zero;
}

/* A row of a matrix, decoded. */
static void decode_row(const luce_matrix *matrix, int32_t row, float *out) {
    const uint8_t *group = matrix->data + row / LUCE_TILE * matrix->tile_bytes;
    int32_t lane = row % LUCE_TILE, halves = matrix->format & LUCE_HALVES ? 2 : 1;
    float factor = matrix->row_factors != NULL ? matrix->row_factors[row] : 1.0f;
    for (int32_t first = 0; first < matrix->columns; first += LUCE_GROUP) {
        const uint16_t *scales = (const uint16_t *)(group + luce_code_bytes(matrix->format)) + lane;
        for (int32_t column = 0; column < LUCE_GROUP; column++) {
            int32_t half = halves * column / LUCE_GROUP;
            float value = half_value(scales[LUCE_TILE * half])
                          * (float)code_at(matrix, group, lane, column);
            if (matrix->format & LUCE_OFFSET) {
                value += half_value(scales[LUCE_TILE * (halves + half)]);
            }
            out[first + column] = value * factor;
        }
        group += matrix->group_bytes;
    }
}

static void embed(const luce_op *op, const luce_step *step, int32_t first, int32_t stop) {
    for (int64_t row = first; row < stop; row++) {
        decode_row(&op->linear->parts[0], step->input_ids[row], op->out + row * op->width);
    }
}

static void rotate(float *head, const float *rotary, int32_t dim, int32_t interleaved) {
    int32_t half = dim / 2;
    for (int32_t pair = 0; pair < half; pair++) {
        int32_t left = interleaved ? 2 * pair : pair;
        int32_t right = interleaved ? 2 * pair + 1 : pair + half;
        float cosine = rotary[2 * pair], sine = rotary[2 * pair + 1];
        float a = head[left], b = head[right];
        head[left] = a * cosine - b * sine;
        head[right] = b * cosine + a * sine;
    }
}

/* A token's keys and values to its slot. */
static void store_token(const luce_op *op, const float *key, int64_t slot) {
    const luce_cache *cache = &op->cache;
    int32_t dim = op->heads.head_dim, num_kv = op->heads.num_kv_heads, tokens = cache->block_tokens;
    int32_t offset = (int32_t)(slot % tokens), groups = dim / LUCE_GROUP;
    int32_t value_bytes = head_bytes(cache->value_type, dim);
    int64_t begin = slot / tokens * cache->block_bytes;
    const float *value = key + (int64_t)num_kv * dim;
    for (int64_t head = 0; head < num_kv; head++) {
        int64_t scales = begin / 2 + head * groups * tokens;
        uint8_t *to = cache->keys + begin + head * tokens * head_bytes(cache->key_type, dim);
        put_key(cache, to, cache->key_scales + scales, offset, key + head * dim, dim);
        encode_head(cache->value_type, value + head * dim, dim,
                    cache->values + begin + (head * tokens + offset) * value_bytes,
                    cache->value_scales + scales + (int64_t)offset * groups);
    }
}

static void place(const luce_op *op, const luce_step *step, int32_t first, int32_t stop) {
    int32_t dim = op->heads.head_dim, num_q = op->heads.num_heads, num_kv = op->heads.num_kv_heads;
    int64_t width = (int64_t)(num_q + 2 * num_kv) * dim;
    for (int64_t token = first; token < stop; token++) {
        float *row = op->out + token * width;
        const float *rotary = step->rotary + token * op->heads.rotary_dim;
        for (int32_t head = 0; head < num_q + num_kv; head++) {
            float *mine = row + (int64_t)head * dim;
            const float *weight = head < num_q ? op->weight : op->key_weight;
            if (weight != NULL) norm_row(mine, weight, mine, dim, op->eps);
            rotate(mine, rotary, op->heads.rotary_dim, op->heads.interleaved);
        }
        store_token(op, row + (int64_t)num_q * dim, step->slots[token]);
    }
}
