/* Attention of many rows: rows are the lanes of scores and sums.
 *
 * Largest scores, weights and totals of a vector's rows are had at once; nothing is summed across
 * lanes. Sums are made in the order of `attention_few.h`, so that a row gets the same bits there.
 */

/* A tile is so many vectors of rows by so many keys, or numbers of a head. */
#define MOST_NUMBERS 8
#if LANES == 16 || defined(__aarch64__)
#define MANY_VECTORS 4
#define MANY_NUMBERS(vectors) ((vectors) > 2 ? 4 : 8)
#else
/* Of 16 registers 12 are sums, 3 rows, and one is a number for all of them. */
#define MANY_VECTORS 3
#define MANY_NUMBERS(vectors) ((vectors) > 1 ? 4 : 8)
#endif

typedef struct {
    const unit_state *unit;
    int32_t stride, all_see; /* all_see: keys that every row sees */
    int32_t start, keys; /* of the segment */
    segment_data data;
    int32_t seen[LUCE_UNIT_ROWS];
    float largest[LUCE_UNIT_ROWS], correction[LUCE_UNIT_ROWS]; /* of the segment */
    float queries[LUCE_MOST_HEAD_DIM * LUCE_UNIT_ROWS]; /* [D, stride] */
    float scores[LUCE_SEGMENT * LUCE_UNIT_ROWS]; /* [64, stride] */
    float scratch[LUCE_SEGMENT * LUCE_MOST_HEAD_DIM];
} many_state;

/* Lanes beyond the last row repeat it. */
static void begin_many(many_state *many, const unit_state *unit) {
    int32_t dim = unit->op->heads.head_dim, stride = unit->stride, last = unit->rows - 1;
    float scale = score_scale(unit);
    many->unit = unit;
    many->stride = stride;
    many->all_see = unit->seen[0];
    for (int32_t row = 0; row < stride; row++) many->seen[row] = unit->seen[row < last ? row : last];
    for (int32_t row = 0; row < stride; row += 4) {
        const float *four[4];
        for (int each = 0; each < 4; each++) {
            four[each] = unit->queries[row + each < last ? row + each : last];
        }
        for (int32_t index = 0; index < dim; index += 4) {
            transpose_four(four, many->queries + index * stride + row, stride);
            for (int each = 0; each < 4; each++) four[each] += 4;
        }
    }
    for (int32_t at = 0; at < dim * stride; at += LANES) {
        store_f(many->queries + at, load_f(many->queries + at) * scale);
    }
}

/* One of `shares` parts of what is read after the segment's keys or values. */
static void fetch_share(const many_state *many, int32_t share, int32_t shares) {
    const unit_state *unit = many->unit;
    int32_t numbers = unit->op->heads.head_dim * unit->op->cache.block_tokens;
    int32_t nbytes = numbers * many->data.ahead_bits / 8;
    for (int32_t block = 0; block < many->data.num_blocks; block++) {
        for (int32_t byte = 64 * share; byte < nbytes; byte += 64 * shares) {
            __builtin_prefetch(many->data.ahead[block] + byte, 0, 2);
        }
    }
}

/* Scores of `count` of the segment's keys from `place` on: the tile's rows begin at `row`. */
INLINE void score_many(many_state *many, int32_t row, int vectors, int32_t place, int count) {
    int32_t dim = many->unit->op->heads.head_dim, tokens = many->unit->op->cache.block_tokens;
    int32_t stride = many->stride;
    const float *query = many->queries + row;
    const float *keys = many->data.blocks[place / tokens] + place % tokens;
    vf sums[MOST_NUMBERS][MANY_VECTORS];
    for (int each = 0; each < count; each++) {
        for (int vector = 0; vector < vectors; vector++) sums[each][vector] = all_f(0);
    }
    for (int32_t index = 0; index < dim; index++, keys += tokens, query += stride) {
        vf loaded[MANY_VECTORS];
        for (int vector = 0; vector < vectors; vector++) loaded[vector] = load_f(query + LANES * vector);
        for (int each = 0; each < count; each++) {
            vf key = all_f(keys[each]);
            for (int vector = 0; vector < vectors; vector++) {
                sums[each][vector] = fma_f(key, loaded[vector], sums[each][vector]);
            }
        }
    }
    for (int vector = 0; vector < vectors; vector++) {
        int32_t at = row + LANES * vector;
        vf largest = load_f(many->largest + at);
        vi seen = *(const vi *)(many->seen + at);
        for (int each = 0; each < count; each++) {
            int32_t key = many->start + place + each;
            vf score = sums[each][vector];
            if (key >= many->all_see) {
                vi is_seen = seen > all_i(key);
                score = (vf)(((vi)score & is_seen) | ((vi)all_f(-INFINITY) & ~is_seen));
            }
            largest = max_f(largest, score);
            store_f(many->scores + (place + each) * stride + at, score);
        }
        store_f(many->largest + at, largest);
    }
}

/* Blocks are a multiple of 8 keys: a tile that is not full reads what its block has behind them. */
INLINE void score_rows(many_state *many, int32_t row, int vectors) {
    const int count = MANY_NUMBERS(vectors);
    for (int32_t place = 0; place < many->keys; place += count) {
        if (row == 0) fetch_share(many, place / count, LUCE_SEGMENT / count);
        score_many(many, row, vectors, place, count);
    }
}

/* Scores to weights relative to the largest so far. */
static void weigh_many(many_state *many, span_state *span) {
    int32_t stride = many->stride;
    int is_first = many->start == span->begin;
    for (int32_t row = 0; row < stride; row += LANES) {
        vf before = is_first ? all_f(-FLT_MAX) : load_f(span->most + row);
        vf most = max_f(before, load_f(many->largest + row));
        vf parts[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            parts[lane] = all_f(0);
            for (int32_t key = lane; key < many->keys; key += LANES) {
                float *score = many->scores + key * stride + row;
                vf weight = power_of_two_f(load_f(score) - most);
                store_f(score, weight);
                parts[lane] += weight;
            }
        }
        for (int width = LANES / 2; width > 0; width /= 2) {
            for (int lane = 0; lane < width; lane++) parts[lane] += parts[lane + width];
        }
        vf correction = power_of_two_f(before - most);
        vf total = is_first ? all_f(0) : load_f(span->total + row) * correction;
        store_f(span->total + row, total + parts[0]);
        store_f(span->most + row, most);
        store_f(many->correction + row, correction);
    }
}

/* Adds the segment's weighted values to `count` numbers from `column` on. */
INLINE void value_many(const many_state *many, const span_state *span, int32_t row, int vectors,
                       int32_t column, int count) {
    int32_t dim = many->unit->op->heads.head_dim, tokens = many->unit->op->cache.block_tokens;
    int32_t stride = many->stride;
    int is_first = many->start == span->begin;
    const float *weights = many->scores + row;
    float *to = span->sums + column * stride + row;
    vf sums[MOST_NUMBERS][MANY_VECTORS];
    for (int vector = 0; vector < vectors; vector++) {
        vf correction = load_f(many->correction + row + LANES * vector);
        for (int each = 0; each < count; each++) {
            const float *from = to + each * stride + LANES * vector;
            sums[each][vector] = is_first ? all_f(0) : load_f(from) * correction;
        }
    }
    for (int32_t first = 0; first < many->keys; first += tokens) {
        const float *values = many->data.blocks[first / tokens] + column;
        int32_t left = many->keys - first, stop = left < tokens ? left : tokens;
        for (int32_t key = 0; key < stop; key++, values += dim, weights += stride) {
            vf loaded[MANY_VECTORS];
            for (int vector = 0; vector < vectors; vector++) {
                loaded[vector] = load_f(weights + LANES * vector);
            }
            for (int each = 0; each < count; each++) {
                vf value = all_f(values[each]);
                for (int vector = 0; vector < vectors; vector++) {
                    sums[each][vector] = fma_f(value, loaded[vector], sums[each][vector]);
                }
            }
        }
    }
    for (int each = 0; each < count; each++) {
        for (int vector = 0; vector < vectors; vector++) {
            store_f(to + each * stride + LANES * vector, sums[each][vector]);
        }
    }
}

INLINE void value_rows_many(const many_state *many, const span_state *span, int32_t row,
                            int vectors) {
    int32_t dim = many->unit->op->heads.head_dim;
    const int count = MANY_NUMBERS(vectors);
    for (int32_t column = 0; column < dim; column += count) {
        if (row == 0) fetch_share(many, column / count, dim / count);
        value_many(many, span, row, vectors, column, count);
    }
}

/* Runs of as many vectors of rows as a tile has, then what is left. */
static void score_segment_many(many_state *many) {
    for (int32_t row = 0, left; (left = (many->stride - row) / LANES) > 0; row += LANES * MANY_VECTORS) {
        if (left >= MANY_VECTORS) score_rows(many, row, MANY_VECTORS);
        else if (left == 3) score_rows(many, row, 3);
        else if (left == 2) score_rows(many, row, 2);
        else score_rows(many, row, 1);
    }
}

static void add_segment_many(const many_state *many, const span_state *span) {
    for (int32_t row = 0, left; (left = (many->stride - row) / LANES) > 0; row += LANES * MANY_VECTORS) {
        if (left >= MANY_VECTORS) value_rows_many(many, span, row, MANY_VECTORS);
        else if (left == 3) value_rows_many(many, span, row, 3);
        else if (left == 2) value_rows_many(many, span, row, 2);
        else value_rows_many(many, span, row, 1);
    }
}

static void attend_many(many_state *many, span_state *span) {
    const unit_state *unit = many->unit;
    for (int32_t start = span->begin; start < span->end; start += LUCE_SEGMENT) {
        int32_t left = unit->length - start;
        many->start = start;
        many->keys = left < LUCE_SEGMENT ? left : LUCE_SEGMENT;
        for (int32_t row = 0; row < many->stride; row++) many->largest[row] = -FLT_MAX;
        load_segment(unit, start, 0, many->scratch, &many->data);
        score_segment_many(many);
        weigh_many(many, span);
        load_segment(unit, start, 1, many->scratch, &many->data);
        add_segment_many(many, span);
    }
}

/* Puts a span to `all`, those before it. Where a row sees nothing of it, its largest score is less
 * than any, and it counts 0.
 */
static void merge_many(const many_state *many, const span_state *span, span_state *all) {
    int32_t dim = many->unit->op->heads.head_dim, stride = many->stride;
    for (int32_t row = 0; row < stride; row += LANES) {
        vf theirs = load_f(all->most + row), own = load_f(span->most + row);
        vf both = max_f(theirs, own);
        vf before = power_of_two_f(theirs - both), mine = power_of_two_f(own - both);
        for (int32_t index = 0; index < dim; index++) {
            float *to = all->sums + index * stride + row;
            vf more = load_f(span->sums + index * stride + row);
            store_f(to, fma_f(load_f(to), before, more * mine));
        }
        vf total = load_f(all->total + row) * before;
        store_f(all->total + row, total + load_f(span->total + row) * mine);
        store_f(all->most + row, both);
    }
}

/* Sums [D, stride] to the rows of the result. */
static void give_out(const unit_state *unit, const float *sums) {
    int32_t dim = unit->op->heads.head_dim, stride = unit->stride;
    for (int32_t row = 0; row < unit->rows; row += 4) {
        int32_t left = unit->rows - row;
        for (int32_t index = 0; index < dim; index += 4) {
            const float *four[4];
            float numbers[16];
            for (int each = 0; each < 4; each++) four[each] = sums + (index + each) * stride + row;
            transpose_four(four, numbers, 4);
            for (int each = 0; each < 4 && each < left; each++) {
                memcpy(unit->outs[row + each] + index, numbers + 4 * each, sizeof(float[4]));
            }
        }
    }
}
