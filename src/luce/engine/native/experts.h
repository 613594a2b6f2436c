/* Mixtures of experts: the choice, and products of each expert with the tokens that chose it.
 *
 * Matrices of all experts lie one below the other. A token's experts are summed by ascending
 * number, so that its result depends on no other token.
 */

static int32_t most_entries(const luce_op *op, int32_t tokens) {
    return tokens * ((const luce_mixture *)op->more)->num_chosen;
}

/* Shares of all experts, and the k largest; of equals the lower number. */
static void route_token(const luce_op *op, int64_t token) {
    const luce_mixture *mixture = op->more;
    int32_t count = mixture->num_experts, chosen = mixture->num_chosen;
    float shares[LUCE_MOST_EXPERTS + LANES];
    memcpy(shares, op->in + token * mixture->logits_stride, (size_t)count * sizeof(float));
    for (int32_t each = 0; each < LANES; each++) shares[count + each] = -INFINITY;
    vf largest = all_f(-INFINITY), total = all_f(0);
    for (int32_t each = 0; each < count; each += LANES) {
        largest = max_f(largest, load_f(shares + each));
    }
    float most = max_of(largest);
    for (int32_t each = 0; each < count; each += LANES) {
        vf share = exp_f(load_f(shares + each) - most);
        store_f(shares + each, share);
        total += share;
    }
    float all = sum_of(total), sum = 0;
    for (int32_t each = 0; each < count; each++) shares[each] /= all;
    int64_t *ids = mixture->chosen + token * chosen;
    float *weights = mixture->weights + token * chosen;
    for (int32_t place = 0; place < chosen; place++) {
        int32_t best = -1;
        for (int32_t each = 0; each < count; each++) {
            /* A share that is taken is below any; one that is no number is taken last. */
            if (shares[each] > (best < 0 ? -0.5f : shares[best])) best = each;
        }
        for (int32_t each = 0; best < 0; each++) {
            if (shares[each] != shares[each]) best = each;
        }
        ids[place] = best;
        weights[place] = shares[best];
        sum += shares[best];
        shares[best] = -1;
        __atomic_fetch_add(mixture->loads + best, 1, __ATOMIC_RELAXED);
    }
    for (int32_t place = 0; mixture->norm_weights && place < chosen; place++) weights[place] /= sum;
}

static void route(const luce_op *op, int32_t first, int32_t stop) {
    for (int64_t token = first; token < stop; token++) route_token(op, token);
}

static void group_rows(const luce_op *op, int32_t tokens) {
    const luce_mixture *mixture = op->more;
    int32_t count = mixture->num_experts, entries = most_entries(op, tokens);
    int32_t *starts = mixture->order, *active = starts + count + 1, *listed = active + 1 + count;
    int32_t next[LUCE_MOST_EXPERTS];
    memset(starts, 0, (size_t)(count + 1) * sizeof *starts);
    for (int32_t entry = 0; entry < entries; entry++) starts[mixture->chosen[entry] + 1]++;
    *active = 0;
    for (int32_t expert = 0; expert < count; expert++) {
        if (starts[expert + 1] > 0) active[1 + (*active)++] = expert;
        starts[expert + 1] += starts[expert];
        next[expert] = starts[expert];
    }
    for (int32_t entry = 0; entry < entries; entry++) listed[next[mixture->chosen[entry]]++] = entry;
}

typedef struct {
    const int32_t *starts, *active, *listed;
    int32_t num_active;
} expert_order;

static expert_order order_of(const luce_mixture *mixture) {
    const int32_t *active = mixture->order + mixture->num_experts + 1;
    return (expert_order){mixture->order, active + 1, active + 1 + mixture->num_experts, *active};
}

/* Each expert that may have entries is a run of chunks; a few, so that each has its share. */
static int32_t gated_parts(const luce_op *op, int32_t tokens, int32_t threads, int32_t *slots) {
    const luce_mixture *mixture = op->more;
    int32_t entries = most_entries(op, tokens);
    *slots = entries < mixture->num_experts ? entries : mixture->num_experts;
    int32_t pairs = op->width / LUCE_GROUP, wanted = (8 * threads + *slots - 1) / *slots;
    return wanted < pairs ? wanted : pairs;
}

static int32_t gated_chunks(const luce_op *op, int32_t tokens, int32_t threads) {
    int32_t slots, parts = gated_parts(op, tokens, threads, &slots);
    return slots * parts;
}

/* The rows of entries, side by side. */
static void gather_rows(const luce_rows *rows, const int32_t *entries, int32_t chosen,
                        int32_t count, luce_rows *to) {
    int64_t columns = rows->columns, groups = columns / LUCE_GROUP;
    for (int32_t each = 0; each < count; each++) {
        int64_t token = entries[each] / chosen;
        memcpy(to->codes + 2 * each * columns, rows->codes + 2 * token * columns,
               (size_t)(2 * columns));
        memcpy(to->groups + each * groups, rows->groups + token * groups,
               (size_t)groups * sizeof(luce_group));
    }
}

static void expert_gated(const luce_op *op, int32_t tokens, int32_t chunk, int32_t chunks) {
    const luce_mixture *mixture = op->more;
    expert_order order = order_of(mixture);
    int32_t entries = most_entries(op, tokens);
    int32_t slots = entries < mixture->num_experts ? entries : mixture->num_experts;
    int32_t parts = chunks / slots, slot = chunk / parts, part = chunk % parts;
    if (slot >= order.num_active) return;
    int32_t expert = order.active[slot], pairs = op->width / LUCE_GROUP;
    int32_t first = (int32_t)((int64_t)pairs * part / parts);
    int32_t stop = (int32_t)((int64_t)pairs * (part + 1) / parts);
    int32_t columns = op->in_rows->columns, most = order.starts[expert + 1];
    int8_t codes[MOST_ROWS * 2 * columns];
    luce_group groups[MOST_ROWS * (columns / LUCE_GROUP)];
    for (int32_t position = order.starts[expert]; position < most; position += MOST_ROWS) {
        int32_t rows = most - position < MOST_ROWS ? most - position : MOST_ROWS;
        const int32_t *listed = order.listed + position;
        luce_rows near = {columns, codes, groups};
        int32_t row = 0;
        if (rows == 1) {
            near = *op->in_rows;
            row = listed[0] / mixture->num_chosen;
        } else {
            gather_rows(op->in_rows, listed, mixture->num_chosen, rows, &near);
        }
        for (int32_t pair = first; pair < stop; pair++) {
            int32_t tile = 2 * (expert * pairs + pair);
            gated_pair(op, &near, row, rows, tile, pair, position);
        }
    }
}

static int32_t down_chunks(const luce_op *op, int32_t threads) {
    int32_t tiles = op->width / LUCE_TILE;
    return tiles < 8 * threads ? tiles : 8 * threads;
}

/* Adds an expert's part of a tile's columns to its tokens. */
static void add_entries(const luce_op *op, const expert_order *order, int32_t expert,
                        int32_t tile) {
    const luce_mixture *mixture = op->more;
    int32_t stop = order->starts[expert + 1], tiles = op->width / LUCE_TILE;
    float values[MOST_ROWS * LUCE_TILE];
    for (int32_t position = order->starts[expert]; position < stop; position += MOST_ROWS) {
        int32_t rows = stop - position < MOST_ROWS ? stop - position : MOST_ROWS;
        tile_product(&op->linear->parts[0], expert * tiles + tile, op->in_rows, position, rows,
                     values);
        for (int32_t each = 0; each < rows; each++) {
            int64_t entry = order->listed[position + each];
            float weight = mixture->weights[entry];
            float *out = op->out + entry / mixture->num_chosen * op->width + LUCE_TILE * tile;
            for (int lane = 0; lane < LUCE_TILE; lane += LANES) {
                vf mine = load_f(values + LUCE_TILE * each + lane);
                store_f(out + lane, fma_f(mine, all_f(weight), load_f(out + lane)));
            }
        }
    }
}

static void expert_down(const luce_op *op, int32_t tokens, int32_t chunk, int32_t chunks) {
    expert_order order = order_of(op->more);
    int32_t tiles = op->width / LUCE_TILE;
    int32_t first = (int32_t)((int64_t)tiles * chunk / chunks);
    int32_t stop = (int32_t)((int64_t)tiles * (chunk + 1) / chunks);
    for (int64_t token = 0; token < tokens; token++) {
        memset(op->out + token * op->width + LUCE_TILE * first, 0,
               (size_t)(LUCE_TILE * (stop - first)) * sizeof(float));
    }
    for (int32_t each = 0; each < order.num_active; each++) {
        for (int32_t tile = first; tile < stop; tile++) {
            add_entries(op, &order, order.active[each], tile);
        }
    }
}
