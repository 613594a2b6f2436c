/* Layers of gated DeltaNet: causal convolution, recurrence, gated norm.
 *
 * All of a sequence's tokens are computed by whoever takes its chunk, in order, so that a state
 * has one writer; what a token gets is the same wherever a step ends. Source of the formulas:
 * `ops/gated_delta.py`.
 */

#define CONV_BLOCK 256 /* channels of a chunk */
#define DELTA_TOKENS 16 /* tokens whose vectors are prepared together */
#define DELTA_VECTORS 2 /* columns of a state that are advanced together, in vectors */
#define DELTA_COLUMNS (DELTA_VECTORS * LANES)
#define COPY_FROM 4 /* tokens for which it pays to have a state's columns side by side */
#define READ_ROWS 2 /* of a state that are read side by side */
#define KEY_EPS 1e-6f

static int32_t delta_channels(const luce_delta *delta) {
    return 2 * delta->key_heads * delta->key_dim + delta->value_heads * delta->value_dim;
}

static int32_t conv_blocks(const luce_delta *delta) {
    return (delta_channels(delta) + CONV_BLOCK - 1) / CONV_BLOCK;
}

/* Channels first .. stop - 1 of one token; `inputs` are those of the last W tokens. */
INLINE void convolve_token(const luce_delta *delta, const float *const *inputs, int width,
                           int32_t first, int32_t stop, float *out) {
    int32_t channels = delta_channels(delta);
    for (int32_t channel = first; channel < stop; channel += LANES) {
        vf total = load_f(inputs[0] + channel) * load_f(delta->taps + channel);
        for (int tap = 1; tap < width; tap++) {
            vf weight = load_f(delta->taps + (int64_t)tap * channels + channel);
            total = fma_f(load_f(inputs[tap] + channel), weight, total);
        }
        store_f(out + channel, silu_f(total));
    }
}

static void convolve(const luce_op *op, const luce_step *step, int32_t chunk) {
    const luce_delta *delta = op->more;
    int32_t blocks = conv_blocks(delta), channels = delta_channels(delta), width = delta->conv_width;
    int32_t sequence = chunk / blocks, first = chunk % blocks * CONV_BLOCK;
    int32_t stop = first + CONV_BLOCK < channels ? first + CONV_BLOCK : channels;
    int32_t start = step->starts[sequence], count = step->starts[sequence + 1] - start;
    float *tail = delta->conv_states + step->state_slots[sequence] * delta->conv_stride;
    const float *inputs[LUCE_MOST_TAPS];
    for (int32_t token = 0; token < count; token++) {
        for (int32_t tap = 0; tap < width; tap++) {
            int32_t place = token + tap; /* in the state, and then the step's tokens */
            inputs[tap] = place < width - 1
                              ? tail + (int64_t)place * channels
                              : op->in + (int64_t)(start + place - (width - 1)) * op->width;
        }
        float *out = op->out + (int64_t)(start + token) * channels;
        if (width == 4) convolve_token(delta, inputs, 4, first, stop, out);
        else convolve_token(delta, inputs, width, first, stop, out);
    }
    for (int32_t place = 0; place < width - 1; place++) {
        int32_t from = place + count; /* never before `place`: nothing is overwritten unread */
        const float *source = from < width - 1
                                  ? tail + (int64_t)from * channels
                                  : op->in + (int64_t)(start + from - (width - 1)) * op->width;
        memmove(tail + (int64_t)place * channels + first, source + first,
                (size_t)(stop - first) * sizeof(float));
    }
}

/* What the recurrence reads of a token. */
typedef struct {
    float query[LUCE_MOST_DIM], key[LUCE_MOST_DIM];
    float kept, gate, overlap; /* exp(g), beta, key . query */
    const float *value;
    float *out;
} delta_token;

/* Divides by the length, and multiplies. */
static void scale_to(const float *from, float factor, float *to, int32_t dim) {
    vf squares = all_f(0);
    for (int32_t each = 0; each < dim; each += LANES) {
        vf x = load_f(from + each);
        squares = fma_f(x, x, squares);
    }
    float scale = factor / sqrtf(sum_of(squares) + KEY_EPS);
    for (int32_t each = 0; each < dim; each += LANES) {
        store_f(to + each, load_f(from + each) * scale);
    }
}

static void prepare_token(const luce_op *op, int32_t token, int32_t head, delta_token *to) {
    const luce_delta *delta = op->more;
    int32_t ratio = delta->value_heads / delta->key_heads, dim = delta->key_dim;
    int32_t of_key = delta->is_tiled ? head % delta->key_heads : head / ratio;
    int32_t channels = delta_channels(delta);
    const float *mixed = delta->mixed + (int64_t)token * channels;
    const float *keys = mixed + delta->key_heads * dim;
    const float *last = op->in + (int64_t)token * op->width + channels
                        + delta->value_heads * delta->value_dim;
    scale_to(mixed + of_key * dim, 1.0f / sqrtf((float)dim), to->query, dim);
    scale_to(keys + of_key * dim, 1.0f, to->key, dim);
    vf overlap = all_f(0);
    for (int32_t each = 0; each < dim; each += LANES) {
        overlap = fma_f(load_f(to->key + each), load_f(to->query + each), overlap);
    }
    to->overlap = sum_of(overlap);
    double step = (double)last[delta->value_heads + head] + (double)delta->dt_bias[head];
    double softplus = step > 20 ? step : log1p(exp(step));
    to->kept = (float)exp((double)delta->decay[head] * softplus);
    to->gate = (float)(1.0 / (1.0 + exp(-(double)last[head])));
    to->value = keys + delta->key_heads * dim + head * delta->value_dim;
    to->out = op->out + (int64_t)token * delta->value_heads * delta->value_dim
              + head * delta->value_dim;
}

/* DELTA_COLUMNS of a state: adds what `old` leaves, then reads for `next`; NULL for none.
 *
 * One pass does both, since each is bound by loads and stores. */
INLINE void pass_state(float *state, int32_t dim, const delta_token *old, const vf *errors,
                       const delta_token *next, vf *by_key, vf *by_query) {
    for (int each = 0; each < DELTA_VECTORS; each++) by_key[each] = by_query[each] = all_f(0);
    vf kept = all_f(old != NULL ? old->kept : 0);
    for (int32_t row = 0; row < dim; row++, state += DELTA_COLUMNS) {
        for (int each = 0; each < DELTA_VECTORS; each++) {
            vf values = load_f(state + LANES * each);
            if (old != NULL) {
                values = fma_f(all_f(old->key[row]), errors[each], values * kept);
                store_f(state + LANES * each, values);
            }
            if (next != NULL) {
                by_key[each] = fma_f(all_f(next->key[row]), values, by_key[each]);
                by_query[each] = fma_f(all_f(next->query[row]), values, by_query[each]);
            }
        }
    }
}

/* Some columns of a state, side by side, by `count` tokens. */
static void advance_near(float *state, int32_t dim, int32_t column, const delta_token *tokens,
                         int32_t count) {
    vf errors[DELTA_VECTORS], by_key[DELTA_VECTORS], by_query[DELTA_VECTORS];
    pass_state(state, dim, NULL, errors, &tokens[0], by_key, by_query);
    for (int32_t token = 0; token < count; token++) {
        const delta_token *now = &tokens[token];
        for (int each = 0; each < DELTA_VECTORS; each++) {
            vf value = load_f(now->value + column + LANES * each);
            errors[each] = (value - by_key[each] * now->kept) * now->gate;
            store_f(now->out + column + LANES * each,
                    fma_f(errors[each], all_f(now->overlap), by_query[each] * now->kept));
        }
        if (token + 1 < count) {
            pass_state(state, dim, now, errors, &tokens[token + 1], by_key, by_query);
        } else {
            pass_state(state, dim, now, errors, NULL, by_key, by_query);
        }
    }
}

/* A state [Dk, Dv] by many tokens: a few columns at a time, which stay in the nearest cache. */
static void advance_by_columns(float *state, int32_t dim, int32_t width,
                               const delta_token *tokens, int32_t count) {
    float near[LUCE_MOST_DIM * DELTA_COLUMNS];
    const size_t bytes = DELTA_COLUMNS * sizeof(float);
    for (int32_t column = 0; column < width; column += DELTA_COLUMNS) {
        float *mine = state + column;
        for (int32_t row = 0; row < dim; row++) {
            memcpy(near + DELTA_COLUMNS * row, mine + row * width, bytes);
        }
        advance_near(near, dim, column, tokens, count);
        for (int32_t row = 0; row < dim; row++) {
            memcpy(mine + row * width, near + DELTA_COLUMNS * row, bytes);
        }
    }
}

/* The same by one token, from front to back: most of the time goes into reading the state. The
 * operations on a column, and so its bits, are those of `advance_near`. */
static void advance_by_rows(float *state, int32_t dim, int32_t width, const delta_token *token) {
    float by_key[LUCE_MOST_DIM] = {0}, by_query[LUCE_MOST_DIM] = {0}, errors[LUCE_MOST_DIM];
    for (int32_t row = 0; row < dim; row += READ_ROWS) {
        for (int32_t column = 0; column < width; column += LANES) {
            vf keys = load_f(by_key + column), queries = load_f(by_query + column);
            for (int each = 0; each < READ_ROWS; each++) {
                vf values = load_f(state + (row + each) * width + column);
                keys = fma_f(all_f(token->key[row + each]), values, keys);
                queries = fma_f(all_f(token->query[row + each]), values, queries);
            }
            store_f(by_key + column, keys);
            store_f(by_query + column, queries);
        }
    }
    for (int32_t column = 0; column < width; column += LANES) {
        vf value = load_f(token->value + column);
        vf error = (value - load_f(by_key + column) * token->kept) * token->gate;
        store_f(errors + column, error);
        store_f(token->out + column,
                fma_f(error, all_f(token->overlap), load_f(by_query + column) * token->kept));
    }
    for (int32_t row = 0; row < dim; row++, state += width) {
        vf key = all_f(token->key[row]);
        for (int32_t column = 0; column < width; column += LANES) {
            vf values = load_f(state + column) * token->kept;
            store_f(state + column, fma_f(key, load_f(errors + column), values));
        }
    }
}

/* Norm of a head's result, times silu(z). */
static void finish_head(const luce_op *op, int32_t token, int32_t head, float *out) {
    const luce_delta *delta = op->more;
    int32_t dim = delta->value_dim;
    const float *z = op->in + (int64_t)token * op->width + delta_channels(delta) + head * dim;
    float scale = norm_scale(out, dim, op->eps);
    for (int32_t each = 0; each < dim; each += LANES) {
        vf gate = load_f(z + each);
        vf normed = load_f(out + each) * scale * load_f(delta->norm + each);
        store_f(out + each, normed * silu_f(gate));
    }
    int64_t at = out - op->out;
    for (int32_t each = 0; op->out_rows != NULL && each < dim; each += LUCE_GROUP) {
        quantise_group(out + each, op->out_rows->codes + 2 * (at + each),
                       op->out_rows->groups + (at + each) / LUCE_GROUP);
    }
}

static void recur(const luce_op *op, const luce_step *step, int32_t chunk) {
    const luce_delta *delta = op->more;
    int32_t sequence = chunk / delta->value_heads, head = chunk % delta->value_heads;
    int32_t start = step->starts[sequence], stop = step->starts[sequence + 1];
    int32_t dim = delta->key_dim, width = delta->value_dim;
    float *state = delta->states + step->state_slots[sequence] * delta->state_stride
                   + (int64_t)head * dim * width;
    delta_token tokens[DELTA_TOKENS];
    for (int32_t first = start; first < stop; first += DELTA_TOKENS) {
        int32_t count = stop - first < DELTA_TOKENS ? stop - first : DELTA_TOKENS;
        for (int32_t each = 0; each < count; each++) {
            prepare_token(op, first + each, head, &tokens[each]);
        }
        if (count < COPY_FROM) {
            for (int32_t each = 0; each < count; each++) {
                advance_by_rows(state, dim, width, &tokens[each]);
            }
        } else {
            advance_by_columns(state, dim, width, tokens, count);
        }
        for (int32_t each = 0; each < count; each++) {
            finish_head(op, first + each, head, tokens[each].out);
        }
    }
}
