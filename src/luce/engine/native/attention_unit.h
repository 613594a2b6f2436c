/* Units of attention: what is read for them, and what becomes of their rows.
 *
 * A unit is a run of tokens and one key head: its rows are tokens times the query heads of that
 * head. Scores are multiplied by log2 e, so that weights are powers of two.
 */

#define MOST_BLOCKS (LUCE_SEGMENT / 16) /* of a segment */

typedef struct {
    const luce_op *op;
    const int32_t *blocks;
    int32_t head, rows, length; /* length: keys that some row sees */
    int32_t stride; /* rows of its sums in memory */
    const float *queries[LUCE_UNIT_ROWS];
    float *outs[LUCE_UNIT_ROWS];
    int32_t seen[LUCE_UNIT_ROWS]; /* keys each row sees */
} unit_state;

/* What the keys from `begin` to `end` give: `most` and `total` [stride], and `sums` of values weighted
 * relative to the largest score: [rows, D], or [D, stride] where there are many rows. */
typedef struct {
    int32_t begin, end;
    float *most, *total, *sums;
} span_state;

/* A head's keys [D, P] or values [P, D] of each block of a segment, and what is read after them as
 * it is stored, `ahead_bits` a number. */
typedef struct {
    const float *blocks[MOST_BLOCKS];
    const uint8_t *ahead[MOST_BLOCKS];
    int32_t ahead_bits, num_blocks;
} segment_data;

/* Whether rows are the lanes; of fewer, keys are. */
static int is_many(int32_t rows) { return rows >= LUCE_MANY_ROWS; }

/* What queries are multiplied by: log2 e / sqrt(D). */
static float score_scale(const unit_state *unit) {
    return 1.44269504f / sqrtf((float)unit->op->heads.head_dim);
}

INLINE void fetch_ahead(const uint8_t *ahead, int32_t numbers, int32_t bits) {
    __builtin_prefetch(ahead + (numbers * bits >> 3), 0, 2);
}

static const uint8_t *stored(const unit_state *unit, int32_t block, int is_value) {
    const luce_cache *cache = &unit->op->cache;
    int32_t type = is_value ? cache->value_type : cache->key_type;
    int64_t part = (int64_t)cache->block_tokens * head_bytes(type, unit->op->heads.head_dim);
    return (is_value ? cache->values : cache->keys) + unit->blocks[block] * cache->block_bytes
           + unit->head * part;
}

static void decode_into(const unit_state *unit, int32_t block, int is_value, float *to) {
    const luce_cache *cache = &unit->op->cache;
    int32_t dim = unit->op->heads.head_dim, tokens = cache->block_tokens;
    int64_t at = unit->blocks[block] * (cache->block_bytes / 2)
                 + (int64_t)unit->head * tokens * (dim / LUCE_GROUP);
    decode_block(is_value ? cache->value_type : cache->key_type, stored(unit, block, is_value),
                 (is_value ? cache->value_scales : cache->key_scales) + at, dim, tokens, is_value, to);
}

/* Plain numbers are read where they lie; others are decoded to `scratch` [64, D]. */
static void load_segment(const unit_state *unit, int32_t start, int is_value, float *scratch,
                         segment_data *data) {
    const luce_cache *cache = &unit->op->cache;
    int32_t tokens = cache->block_tokens, last = (unit->length - 1) / tokens;
    int32_t type = is_value ? cache->value_type : cache->key_type, each_segment = LUCE_SEGMENT / tokens;
    data->ahead_bits = head_bytes(is_value ? cache->key_type : cache->value_type, 8);
    data->num_blocks = 0;
    for (int32_t index = 0; index < each_segment; index++) {
        int32_t block = start / tokens + index, next = block + each_segment;
        if (block > last) break;
        data->num_blocks++;
        /* After keys their values, after values the next keys; what is there already costs little. */
        data->ahead[index] = stored(unit, is_value && next <= last ? next : block, !is_value);
        data->blocks[index] = (const float *)stored(unit, block, is_value);
        if (type == LUCE_KV_F32) continue;
        float *to = scratch + index * tokens * unit->op->heads.head_dim;
        decode_into(unit, block, is_value, to);
        data->blocks[index] = to;
    }
}

static void begin_unit(unit_state *unit, const luce_op *op, const luce_step *step, int32_t index,
                       int32_t head) {
    const luce_heads *heads = &op->heads;
    int32_t group = heads->num_heads / heads->num_kv_heads;
    int32_t count = step->unit_counts[index], token = step->unit_tokens[index];
    int64_t width = (int64_t)(heads->num_heads + 2 * heads->num_kv_heads) * heads->head_dim;
    int64_t out_width = (int64_t)heads->num_heads * heads->head_dim;
    unit->op = op;
    unit->blocks = step->blocks + step->unit_tables[index];
    unit->head = head;
    unit->rows = count * group;
    unit->stride = unit->rows;
    if (is_many(unit->rows)) unit->stride += (LUCE_TILE - unit->rows % LUCE_TILE) % LUCE_TILE;
    unit->length = step->unit_lengths[index] + count - 1;
    for (int32_t row = 0; row < unit->rows; row++) {
        int64_t mine = token + row / group;
        int64_t column = (int64_t)(unit->head * group + row % group) * heads->head_dim;
        unit->queries[row] = op->in + mine * width + column;
        unit->outs[row] = op->out + mine * out_width + column;
        unit->seen[row] = step->unit_lengths[index] + row / group;
    }
}

static void finish_row(const unit_state *unit, int32_t row, float total) {
    const luce_op *op = unit->op;
    int32_t dim = op->heads.head_dim;
    float *out = unit->outs[row], inverse = 1.0f / total;
    for (int32_t index = 0; index < dim; index += LANES) {
        store_f(out + index, load_f(out + index) * inverse);
    }
    if (op->out_rows == NULL) return;
    int64_t at = out - op->out;
    for (int32_t first = 0; first < dim; first += LUCE_GROUP) {
        quantise_group(out + first, op->out_rows->codes + 2 * (at + first),
                       op->out_rows->groups + (at + first) / LUCE_GROUP);
    }
}

