/* Paged attention with a running maximum, 64 keys at a time.
 *
 * A unit is a run of tokens and one key head: its rows are tokens times the query heads of that
 * head. What a row gets depends on its own keys alone: segments begin at multiples of 64, and keys
 * it may not see count exactly 0.
 */

#define TILE_ROWS 4
#define TILE_VECTORS 4

typedef struct {
    const luce_op *op;
    const int32_t *blocks;
    int32_t head, rows, length; /* length: keys that some row sees */
    const float *queries[LUCE_UNIT_ROWS];
    float *outs[LUCE_UNIT_ROWS];
    int32_t seen[LUCE_UNIT_ROWS]; /* keys each row sees */
    float most[LUCE_UNIT_ROWS], total[LUCE_UNIT_ROWS];
} unit_state;

static const float *keys_of(const unit_state *unit, int32_t position) {
    const luce_op *op = unit->op;
    int32_t tokens = op->cache.block_tokens, dim = op->heads.head_dim;
    int64_t part = (int64_t)op->heads.num_kv_heads * dim * tokens;
    return op->cache.data + unit->blocks[position / tokens] * 2 * part
           + (int64_t)unit->head * dim * tokens + position % tokens;
}

static const float *values_of(const unit_state *unit, int32_t position) {
    const luce_op *op = unit->op;
    int32_t tokens = op->cache.block_tokens, dim = op->heads.head_dim;
    int64_t part = (int64_t)op->heads.num_kv_heads * dim * tokens;
    return op->cache.data + unit->blocks[position / tokens] * 2 * part + part
           + ((int64_t)unit->head * tokens + position % tokens) * dim;
}

/* Scores of `rows` rows against `vectors` * LANES keys. */
INLINE void score_tile(const unit_state *unit, int32_t row, int rows, const float *const *keys,
                       int vectors, float *scores) {
    int32_t dim = unit->op->heads.head_dim, stride = unit->op->cache.block_tokens;
    vf sums[TILE_ROWS][TILE_VECTORS];
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) sums[each][vector] = all_f(0);
    }
    for (int32_t index = 0; index < dim; index++) {
        vf loaded[TILE_VECTORS];
        for (int vector = 0; vector < vectors; vector++) {
            loaded[vector] = load_f(keys[vector] + (int64_t)index * stride);
        }
        for (int each = 0; each < rows; each++) {
            vf query = all_f(unit->queries[row + each][index]);
            for (int vector = 0; vector < vectors; vector++) {
                sums[each][vector] = fma_f(query, loaded[vector], sums[each][vector]);
            }
        }
    }
    float scale = 1.0f / sqrtf((float)dim);
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) {
            store_f(scores + LUCE_SEGMENT * each + LANES * vector, sums[each][vector] * scale);
        }
    }
}

static void score_segment(const unit_state *unit, int32_t start, float *scores) {
    int32_t stop = unit->length - start < LUCE_SEGMENT ? unit->length : start + LUCE_SEGMENT;
    for (int32_t key = start; key < stop; key += TILE_VECTORS * LANES) {
        const float *keys[TILE_VECTORS];
        int32_t vectors = (stop - key + LANES - 1) / LANES;
        if (vectors > TILE_VECTORS) vectors = TILE_VECTORS;
        for (int32_t each = 0; each < vectors; each++) keys[each] = keys_of(unit, key + LANES * each);
        /* A tile is whole: what is beyond the last key is read twice and masked. */
        for (int32_t each = vectors; each < TILE_VECTORS; each++) keys[each] = keys[0];
        for (int32_t row = 0; row < unit->rows;) {
            int32_t left = unit->rows - row;
            float *to = scores + LUCE_SEGMENT * row + (key - start);
            if (left >= 4) score_tile(unit, row, 4, keys, TILE_VECTORS, to);
            else if (left == 3) score_tile(unit, row, 3, keys, TILE_VECTORS, to);
            else if (left == 2) score_tile(unit, row, 2, keys, TILE_VECTORS, to);
            else score_tile(unit, row, 1, keys, TILE_VECTORS, to);
            row += left >= 4 ? 4 : left;
        }
    }
}

/* Scores to weights relative to the largest so far; what was summed before is scaled to that. */
static void weigh_row(unit_state *unit, int32_t row, int32_t start, float *scores) {
    int32_t visible = unit->seen[row] - start;
    if (visible > LUCE_SEGMENT) visible = LUCE_SEGMENT;
    for (int32_t key = visible < 0 ? 0 : visible; key < LUCE_SEGMENT; key++) scores[key] = -INFINITY;
    if (visible <= 0) {
        memset(scores, 0, LUCE_SEGMENT * sizeof(float));
        return;
    }
    vf largest = load_f(scores);
    for (int key = LANES; key < LUCE_SEGMENT; key += LANES) largest = max_f(largest, load_f(scores + key));
    float most = max_of(largest);
    if (most < unit->most[row]) most = unit->most[row];
    vf sum = all_f(0);
    for (int key = 0; key < LUCE_SEGMENT; key += LANES) {
        vf weight = exp_f(load_f(scores + key) - most);
        store_f(scores + key, weight);
        sum += weight;
    }
    float correction = start == 0 ? 0 : exp_f(all_f(unit->most[row] - most))[0];
    unit->total[row] = unit->total[row] * correction + sum_of(sum);
    if (most != unit->most[row] && start > 0) {
        float *out = unit->outs[row];
        int32_t dim = unit->op->heads.head_dim;
        for (int32_t index = 0; index < dim; index += LANES) {
            store_f(out + index, load_f(out + index) * correction);
        }
    }
    unit->most[row] = most;
}

/* Adds the weighted values of a segment to LANES * vectors numbers of `rows` rows. */
INLINE void value_tile(const unit_state *unit, int32_t row, int rows, int32_t start, int32_t keys,
                       int32_t column, int vectors, const float *weights) {
    vf sums[TILE_ROWS][TILE_VECTORS];
    int32_t dim = unit->op->heads.head_dim, tokens = unit->op->cache.block_tokens;
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) {
            sums[each][vector] =
                start == 0 ? all_f(0) : load_f(unit->outs[row + each] + column + LANES * vector);
        }
    }
    for (int32_t first = 0; first < keys; first += tokens) {
        const float *values = values_of(unit, start + first) + column;
        int32_t count = keys - first < tokens ? keys - first : tokens;
        for (int32_t key = 0; key < count; key++) {
            vf loaded[TILE_VECTORS];
            for (int vector = 0; vector < vectors; vector++) {
                loaded[vector] = load_f(values + (int64_t)key * dim + LANES * vector);
            }
            for (int each = 0; each < rows; each++) {
                vf weight = all_f(weights[LUCE_SEGMENT * each + first + key]);
                for (int vector = 0; vector < vectors; vector++) {
                    sums[each][vector] = fma_f(weight, loaded[vector], sums[each][vector]);
                }
            }
        }
    }
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) {
            store_f(unit->outs[row + each] + column + LANES * vector, sums[each][vector]);
        }
    }
}

INLINE void value_rows(const unit_state *unit, int32_t row, int rows, int32_t start, int32_t keys,
                       const float *weights) {
    int32_t dim = unit->op->heads.head_dim, column = 0;
    for (; column + TILE_VECTORS * LANES <= dim; column += TILE_VECTORS * LANES) {
        value_tile(unit, row, rows, start, keys, column, TILE_VECTORS, weights);
    }
    for (; column < dim; column += LANES) {
        value_tile(unit, row, rows, start, keys, column, 1, weights);
    }
}

static void add_segment(const unit_state *unit, int32_t start, const float *weights) {
    int32_t keys = unit->length - start < LUCE_SEGMENT ? unit->length - start : LUCE_SEGMENT;
    for (int32_t row = 0; row < unit->rows;) {
        int32_t left = unit->rows - row;
        const float *mine = weights + LUCE_SEGMENT * row;
        if (left >= 4) value_rows(unit, row, 4, start, keys, mine);
        else if (left == 3) value_rows(unit, row, 3, start, keys, mine);
        else if (left == 2) value_rows(unit, row, 2, start, keys, mine);
        else value_rows(unit, row, 1, start, keys, mine);
        row += left >= 4 ? 4 : left;
    }
}

static void begin_unit(unit_state *unit, const luce_op *op, const luce_step *step, int32_t chunk) {
    const luce_heads *heads = &op->heads;
    int32_t index = chunk / heads->num_kv_heads, group = heads->num_heads / heads->num_kv_heads;
    int32_t count = step->unit_counts[index], token = step->unit_tokens[index];
    int64_t width = (int64_t)(heads->num_heads + 2 * heads->num_kv_heads) * heads->head_dim;
    int64_t out_width = (int64_t)heads->num_heads * heads->head_dim;
    unit->op = op;
    unit->blocks = step->blocks + step->unit_tables[index];
    unit->head = chunk % heads->num_kv_heads;
    unit->rows = count * group;
    unit->length = step->unit_lengths[index] + count - 1;
    for (int32_t row = 0; row < unit->rows; row++) {
        int64_t mine = token + row / group;
        int64_t column = (int64_t)(unit->head * group + row % group) * heads->head_dim;
        unit->queries[row] = op->in + mine * width + column;
        unit->outs[row] = op->out + mine * out_width + column;
        unit->seen[row] = step->unit_lengths[index] + row / group;
        unit->most[row] = -INFINITY;
        unit->total[row] = 0;
    }
}

static void finish_row(const unit_state *unit, int32_t row) {
    const luce_op *op = unit->op;
    int32_t dim = op->heads.head_dim;
    float *out = unit->outs[row], inverse = 1.0f / unit->total[row];
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

static void attend(const luce_op *op, const luce_step *step, int32_t chunk) {
    unit_state unit;
    float scores[LUCE_UNIT_ROWS * LUCE_SEGMENT];
    begin_unit(&unit, op, step, chunk);
    for (int32_t start = 0; start < unit.length; start += LUCE_SEGMENT) {
        score_segment(&unit, start, scores);
        for (int32_t row = 0; row < unit.rows; row++) {
            weigh_row(&unit, row, start, scores + LUCE_SEGMENT * row);
        }
        add_segment(&unit, start, scores);
    }
    for (int32_t row = 0; row < unit.rows; row++) finish_row(&unit, row);
}
