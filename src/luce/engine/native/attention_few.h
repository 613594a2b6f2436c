/* Attention of few rows: keys are the lanes of scores, numbers of a head those of sums. */

#define TILE_ROWS 4
#define TILE_VECTORS 4

/* Queries times the scale of scores, to `room`. */
static void scale_queries(unit_state *unit, float *room) {
    int32_t dim = unit->op->heads.head_dim;
    float scale = score_scale(unit);
    for (int32_t row = 0; row < unit->rows; row++, room += dim) {
        for (int32_t index = 0; index < dim; index += LANES) {
            store_f(room + index, load_f(unit->queries[row] + index) * scale);
        }
        unit->queries[row] = room;
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
    for (int each = 0; each < rows; each++) {
        for (int vector = 0; vector < vectors; vector++) {
            store_f(scores + LUCE_SEGMENT * each + LANES * vector, sums[each][vector]);
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
        vf weight = power_of_two_f(load_f(scores + key) - most);
        store_f(scores + key, weight);
        sum += weight;
    }
    float correction = is_first ? 0 : power_of_two_f(all_f(before - most))[0];
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

static void attend_few(const unit_state *unit, span_state *span) {
    float scores[LUCE_MANY_ROWS * LUCE_SEGMENT], scratch[LUCE_SEGMENT * LUCE_MOST_HEAD_DIM];
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
static void merge_few(const unit_state *unit, const span_state *span, float *most, float *total) {
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
        vf before = power_of_two_f(all_f(most[row] - both));
        vf mine = power_of_two_f(all_f(span->most[row] - both));
        for (int32_t index = 0; index < dim; index += LANES) {
            store_f(out + index, fma_f(load_f(out + index), before, load_f(sums + index) * mine));
        }
        most[row] = both;
        total[row] = total[row] * before[0] + span->total[row] * mine[0];
    }
}

