/* Gates, token by token, and products with small plain matrices. */

#define DENSE_ROWS 8 /* rows of a matrix in a chunk */

static vf sigmoid_f(vf x) { return 1.0f / (exp_f(-x) + 1.0f); }

/* Rounds `width` numbers of a row of out_rows, if there are any to fill. */
static void round_row(const luce_op *op, int64_t row, int32_t width) {
    if (op->out_rows == NULL) return;
    for (int32_t each = 0; each < width; each += LUCE_GROUP) {
        int64_t at = row * width + each;
        quantise_group(op->out + at, op->out_rows->codes + 2 * at,
                       op->out_rows->groups + at / LUCE_GROUP);
    }
}

static void rounded_norm(const luce_op *op, int32_t first, int32_t stop) {
    norm(op, first, stop);
    for (int64_t row = first; row < stop; row++) round_row(op, row, op->width);
}

static void split_gates(const luce_op *op, int32_t first, int32_t stop) {
    int64_t heads = op->heads.num_heads, dim = op->heads.head_dim;
    int64_t others = 2 * op->heads.num_kv_heads * dim;
    size_t bytes = (size_t)dim * sizeof(float);
    for (int64_t token = first; token < stop; token++) {
        const float *from = op->in + token * (2 * heads * dim + others);
        float *to = op->out + token * (heads * dim + others);
        for (int64_t head = 0; head < heads; head++) {
            memcpy(to + head * dim, from + 2 * head * dim, bytes);
        }
        memcpy(to + heads * dim, from + 2 * heads * dim, (size_t)others * sizeof(float));
    }
}

static void gate_heads(const luce_op *op, int32_t first, int32_t stop) {
    int64_t heads = op->heads.num_heads, dim = op->heads.head_dim;
    int64_t width = 2 * (heads + op->heads.num_kv_heads) * dim;
    for (int64_t token = first; token < stop; token++) {
        for (int64_t head = 0; head < heads; head++) {
            const float *gates = op->in + token * width + (2 * head + 1) * dim;
            float *mine = op->out + (token * heads + head) * dim;
            for (int64_t each = 0; each < dim; each += LANES) {
                store_f(mine + each, load_f(mine + each) * sigmoid_f(load_f(gates + each)));
            }
        }
        round_row(op, token, (int32_t)(heads * dim));
    }
}

static void silu_mul(const luce_op *op, int32_t first, int32_t stop) {
    int64_t width = op->width;
    for (int64_t row = first; row < stop; row++) {
        const float *gate = op->in + 2 * row * width, *up = gate + width;
        for (int64_t each = 0; each < width; each += LANES) {
            store_f(op->out + row * width + each, silu_f(load_f(gate + each)) * load_f(up + each));
        }
        round_row(op, row, op->width);
    }
}

static void add_mixture(const luce_op *op, int32_t first, int32_t stop) {
    const luce_shared *with = op->more;
    for (int64_t row = first; row < stop; row++) {
        float *out = op->out + row * op->width;
        const float *mixed = op->in + row * op->width, *shared = NULL;
        vf gate = all_f(0);
        if (with->shared != NULL) {
            shared = with->shared + row * op->width;
            gate = sigmoid_f(all_f(with->gate[row * with->gate_stride]));
        }
        for (int32_t each = 0; each < op->width; each += LANES) {
            vf more = load_f(mixed + each);
            if (shared != NULL) more = fma_f(load_f(shared + each), gate, more);
            store_f(out + each, load_f(out + each) + more);
        }
    }
}

static int32_t dense_chunks(const luce_op *op) {
    return (((const luce_dense *)op->more)->rows + DENSE_ROWS - 1) / DENSE_ROWS;
}

/* `rows` rows of the matrix times `tokens` tokens; a sum is made of the same parts in any tile. */
INLINE void dense_tile(const luce_op *op, int32_t token, int32_t row, int tokens, int rows) {
    const luce_dense *matrix = op->more;
    int64_t columns = matrix->columns;
    const float *x = op->in + token * columns, *weight = matrix->data + row * columns;
    vf sums[4][4];
    for (int each = 0; each < tokens; each++) {
        for (int other = 0; other < rows; other++) sums[each][other] = all_f(0);
    }
    for (int64_t column = 0; column < columns; column += LANES) {
        for (int each = 0; each < tokens; each++) {
            vf mine = load_f(x + each * columns + column);
            for (int other = 0; other < rows; other++) {
                vf theirs = load_f(weight + other * columns + column);
                sums[each][other] = fma_f(mine, theirs, sums[each][other]);
            }
        }
    }
    for (int each = 0; each < tokens; each++) {
        float *out = op->out + (int64_t)(token + each) * op->width + row;
        for (int other = 0; other < rows; other++) out[other] = sum_of(sums[each][other]);
    }
}

static void dense(const luce_op *op, int32_t tokens, int32_t chunk) {
    int32_t first = chunk * DENSE_ROWS, rows = ((const luce_dense *)op->more)->rows;
    int32_t stop = first + DENSE_ROWS < rows ? first + DENSE_ROWS : rows;
    for (int32_t token = 0; token < tokens;) {
        int32_t count = tokens - token >= 4 ? 4 : 1;
        for (int32_t row = first; row < stop;) {
            int32_t width = stop - row >= 4 ? 4 : 1;
            if (count == 4 && width == 4) dense_tile(op, token, row, 4, 4);
            else if (count == 4) dense_tile(op, token, row, 4, 1);
            else if (width == 4) dense_tile(op, token, row, 1, 4);
            else dense_tile(op, token, row, 1, 1);
            row += width;
        }
        token += count;
    }
}
