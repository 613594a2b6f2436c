/* Paged attention with a running maximum, 64 keys at a time.
 *
 * A unit is a run of tokens and one key head: its rows are tokens times the query heads of that
 * head. Its keys are cut into spans of 256, each attended to by itself; then the spans are put
 * together in order, by the thread that has them all or that finishes last. What a row gets depends
 * on its own keys alone: spans and segments begin at fixed places, and keys it may not see count
 * exactly 0.
 */

#define TILE_ROWS 4
#define TILE_VECTORS 4
#define MOST_BLOCKS (LUCE_SEGMENT / 16) /* of a segment */

typedef struct {
    const luce_op *op;
    const int32_t *blocks;
    int32_t head, rows, length; /* length: keys that some row sees */
    const float *queries[LUCE_UNIT_ROWS];
    float *outs[LUCE_UNIT_ROWS];
    int32_t seen[LUCE_UNIT_ROWS]; /* keys each row sees */
} unit_state;

/* What the keys from `begin` to `end` give: `sums` [rows, D] of values weighted relative to the
 * largest score. */
typedef struct {
    int32_t begin, end;
    float *most, *total, *sums;
} span_state;

/* A head's keys [D, P] or values [P, D] of each block of a segment, and what is read after them as
 * it is stored, `ahead_bits` a number. */
typedef struct {
    const float *blocks[MOST_BLOCKS];
    const uint8_t *ahead[MOST_BLOCKS];
    int32_t ahead_bits;
} segment_data;

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
    for (int32_t index = 0; index < each_segment; index++) {
        int32_t block = start / tokens + index, next = block + each_segment;
        if (block > last) break;
        /* After keys their values, after values the next keys; what is there already costs little. */
        data->ahead[index] = stored(unit, is_value && next <= last ? next : block, !is_value);
        data->blocks[index] = (const float *)stored(unit, block, is_value);
        if (type == LUCE_KV_F32) continue;
        float *to = scratch + index * tokens * unit->op->heads.head_dim;
        decode_into(unit, block, is_value, to);
        data->blocks[index] = to;
    }
}

typedef struct {
    const float *keys[TILE_VECTORS];
    const uint8_t *ahead[TILE_VECTORS];
    int32_t ahead_bits;
} key_run;

/* Scores of `rows` rows against `vectors` * LANES keys. */
INLINE void score_tile(const unit_state *unit, int32_t row, int rows, const key_run *run,
                       int vectors, float *scores) {
    int32_t dim = unit->op->heads.head_dim, stride = unit->op->cache.block_tokens;
    vf sums[TILE_ROWS][TILE_VECTORS];
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) sums[each][vector] = all_f(0);
    }
    for (int32_t index = 0; index < dim; index++) {
        vf loaded[TILE_VECTORS];
        for (int vector = 0; vector < vectors; vector++) {
            loaded[vector] = load_f(run->keys[vector] + (int64_t)index * stride);
            if (row == 0) fetch_ahead(run->ahead[vector], index * stride, run->ahead_bits);
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

static void score_segment(const unit_state *unit, int32_t start, const segment_data *data,
                          float *scores) {
    int32_t stop = unit->length - start < LUCE_SEGMENT ? unit->length : start + LUCE_SEGMENT;
    int32_t tokens = unit->op->cache.block_tokens;
    for (int32_t key = start; key < stop; key += TILE_VECTORS * LANES) {
        key_run run = {.ahead_bits = data->ahead_bits};
        for (int32_t each = 0; each < TILE_VECTORS; each++) {
            /* A tile is whole: what is beyond the last key is read twice and masked. */
            int32_t place = (key + LANES * each < stop ? key + LANES * each : key) - start;
            run.keys[each] = data->blocks[place / tokens] + place % tokens;
            run.ahead[each] = data->ahead[place / tokens] + (place % tokens * run.ahead_bits >> 3);
        }
        for (int32_t row = 0; row < unit->rows;) {
            int32_t left = unit->rows - row;
            float *to = scores + LUCE_SEGMENT * row + (key - start);
            if (left >= 4) score_tile(unit, row, 4, &run, TILE_VECTORS, to);
            else if (left == 3) score_tile(unit, row, 3, &run, TILE_VECTORS, to);
            else if (left == 2) score_tile(unit, row, 2, &run, TILE_VECTORS, to);
            else score_tile(unit, row, 1, &run, TILE_VECTORS, to);
            row += left >= 4 ? 4 : left;
        }
    }
}

/* Scores to weights relative to the largest so far; what was summed before is scaled to that. */
static void weigh_row(const unit_state *unit, span_state *span, int32_t row, int32_t start,
                      float *scores) {
    int32_t visible = unit->seen[row] - start;
    if (visible > LUCE_SEGMENT) visible = LUCE_SEGMENT;
    for (int32_t key = visible < 0 ? 0 : visible; key < LUCE_SEGMENT; key++) scores[key] = -INFINITY;
    if (visible <= 0) {
        memset(scores, 0, LUCE_SEGMENT * sizeof(float));
        return;
    }
    int is_first = start == span->begin;
    vf largest = load_f(scores);
    for (int key = LANES; key < LUCE_SEGMENT; key += LANES) largest = max_f(largest, load_f(scores + key));
    float most = max_of(largest), before = is_first ? -INFINITY : span->most[row];
    if (most < before) most = before;
    vf sum = all_f(0);
    for (int key = 0; key < LUCE_SEGMENT; key += LANES) {
        vf weight = exp_f(load_f(scores + key) - most);
        store_f(scores + key, weight);
        sum += weight;
    }
    float correction = is_first ? 0 : exp_f(all_f(before - most))[0];
    span->total[row] = (is_first ? 0 : span->total[row] * correction) + sum_of(sum);
    if (most != before && !is_first) {
        int32_t dim = unit->op->heads.head_dim;
        float *sums = span->sums + (int64_t)row * dim;
        for (int32_t index = 0; index < dim; index += LANES) {
            store_f(sums + index, load_f(sums + index) * correction);
        }
    }
    span->most[row] = most;
}

typedef struct {
    const segment_data *data;
    const float *first_row; /* the weights of all rows */
    int32_t keys, is_first;
} value_run;

/* Adds the weighted values of a segment to LANES * vectors numbers of `rows` rows. */
INLINE void value_tile(const unit_state *unit, const value_run *run, float *to, int rows,
                       int32_t column, int vectors, const float *weights) {
    vf sums[TILE_ROWS][TILE_VECTORS];
    int32_t dim = unit->op->heads.head_dim, tokens = unit->op->cache.block_tokens;
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) {
            sums[each][vector] =
                run->is_first ? all_f(0) : load_f(to + each * dim + column + LANES * vector);
        }
    }
    for (int32_t first = 0; first < run->keys; first += tokens) {
        const float *values = run->data->blocks[first / tokens] + column;
        const uint8_t *ahead = run->data->ahead[first / tokens];
        int32_t count = run->keys - first < tokens ? run->keys - first : tokens;
        for (int32_t key = 0; key < count; key++) {
            vf loaded[TILE_VECTORS];
            for (int vector = 0; vector < vectors; vector++) {
                loaded[vector] = load_f(values + (int64_t)key * dim + LANES * vector);
                if (weights != run->first_row) continue;
                fetch_ahead(ahead, key * dim + column + LANES * vector, run->data->ahead_bits);
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
            store_f(to + each * dim + column + LANES * vector, sums[each][vector]);
        }
    }
}

INLINE void value_rows(const unit_state *unit, const value_run *run, float *to, int rows,
                       const float *weights) {
    int32_t dim = unit->op->heads.head_dim, column = 0;
    for (; column + TILE_VECTORS * LANES <= dim; column += TILE_VECTORS * LANES) {
        value_tile(unit, run, to, rows, column, TILE_VECTORS, weights);
    }
    for (; column < dim; column += LANES) value_tile(unit, run, to, rows, column, 1, weights);
}

static void add_segment(const unit_state *unit, const value_run *run, float *sums) {
    for (int32_t row = 0; row < unit->rows;) {
        int32_t left = unit->rows - row;
        const float *mine = run->first_row + LUCE_SEGMENT * row;
        float *to = sums + (int64_t)row * unit->op->heads.head_dim;
        if (left >= 4) value_rows(unit, run, to, 4, mine);
        else if (left == 3) value_rows(unit, run, to, 3, mine);
        else if (left == 2) value_rows(unit, run, to, 2, mine);
        else value_rows(unit, run, to, 1, mine);
        row += left >= 4 ? 4 : left;
    }
}

static void attend_span(const unit_state *unit, span_state *span) {
    float scores[LUCE_UNIT_ROWS * LUCE_SEGMENT], scratch[LUCE_SEGMENT * LUCE_MOST_HEAD_DIM];
    segment_data data;
    for (int32_t start = span->begin; start < span->end; start += LUCE_SEGMENT) {
        load_segment(unit, start, 0, scratch, &data);
        score_segment(unit, start, &data, scores);
        for (int32_t row = 0; row < unit->rows; row++) {
            weigh_row(unit, span, row, start, scores + LUCE_SEGMENT * row);
        }
        load_segment(unit, start, 1, scratch, &data);
        int32_t keys = unit->length - start < LUCE_SEGMENT ? unit->length - start : LUCE_SEGMENT;
        value_run run = {&data, scores, keys, start == span->begin};
        add_segment(unit, &run, span->sums);
    }
}

/* Puts a span to those before it, which are in the rows of the result; `most` and `total` theirs. */
static void merge_span(const unit_state *unit, const span_state *span, float *most, float *total) {
    int32_t dim = unit->op->heads.head_dim;
    for (int32_t row = 0; row < unit->rows; row++) {
        if (unit->seen[row] <= span->begin) continue;
        float *out = unit->outs[row];
        const float *sums = span->sums + (int64_t)row * dim;
        if (span->begin == 0) {
            most[row] = span->most[row];
            total[row] = span->total[row];
            memcpy(out, sums, (size_t)dim * sizeof(float));
            continue;
        }
        float both = span->most[row] > most[row] ? span->most[row] : most[row];
        vf before = exp_f(all_f(most[row] - both)), mine = exp_f(all_f(span->most[row] - both));
        for (int32_t index = 0; index < dim; index += LANES) {
            store_f(out + index, fma_f(load_f(out + index), before, load_f(sums + index) * mine));
        }
        most[row] = both;
        total[row] = total[row] * before[0] + span->total[row] * mine[0];
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

static span_state span_at(const unit_state *unit, int32_t index, float *memory) {
    int32_t begin = LUCE_SPAN * index, end = begin + LUCE_SPAN;
    return (span_state){begin, end < unit->length ? end : unit->length, memory, memory + unit->rows,
                        memory + 2 * unit->rows};
}

/* All spans of a unit, one after the other, or those that are in `partials` already. */
static void finish_unit(const unit_state *unit, float *partials, int64_t stride) {
    float own[LUCE_UNIT_ROWS * (LUCE_MOST_HEAD_DIM + 2)];
    float most[LUCE_UNIT_ROWS], total[LUCE_UNIT_ROWS];
    for (int32_t index = 0; LUCE_SPAN * index < unit->length; index++) {
        span_state span = span_at(unit, index, partials == NULL ? own : partials + index * stride);
        if (partials == NULL) attend_span(unit, &span);
        merge_span(unit, &span, most, total);
    }
    for (int32_t row = 0; row < unit->rows; row++) finish_row(unit, row, total[row]);
}

static void attend(const luce_op *op, const luce_step *step, int32_t chunk) {
    int32_t num_kv = op->heads.num_kv_heads, piece = chunk / num_kv, head = chunk % num_kv;
    int32_t index = step->piece_units[piece], span_index = step->piece_spans[piece];
    unit_state unit;
    begin_unit(&unit, op, step, index, head);
    if (span_index < 0) {
        finish_unit(&unit, NULL, 0);
        return;
    }
    int64_t slot = (int64_t)step->partial_rows * (op->heads.head_dim + 2);
    float *partials = step->partials + ((int64_t)(piece - span_index) * num_kv + head) * slot;
    span_state span = span_at(&unit, span_index, partials + span_index * num_kv * slot);
    attend_span(&unit, &span);
    int32_t all = (unit.length + LUCE_SPAN - 1) / LUCE_SPAN;
    int32_t *arrivals = step->arrivals + index * num_kv + head;
    if (__atomic_add_fetch(arrivals, 1, __ATOMIC_ACQ_REL) < all) return;
    __atomic_store_n(arrivals, 0, __ATOMIC_RELAXED);
    finish_unit(&unit, partials, num_kv * slot);
}
