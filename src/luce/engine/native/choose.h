/* Chooses tokens: the largest logit, or a draw by top-k, temperature, min-p and top-p.
 *
 * The definition is `engine/sampling/draw.py`. Every cut is by value, so nothing depends on how
 * equal tokens are ordered. Sums are in float64, over blocks of 256 in the order of the ids.
 */

#define CHOICE_BLOCK 256
#define MOST_LARGE 8192
#define LEAST_LARGE 0x1p-17f

/* The largest number of a row; no number if there is none among them or one is infinite. */
static float largest_logit(const float *logits, int32_t count) {
    vf most = all_f(-INFINITY);
    vi broken = all_i(0);
    int32_t index = 0;
    for (; index + LANES <= count; index += LANES) {
        vf x = load_f(logits + index);
        most = max_f(most, x);
        broken |= x != x;
    }
    float largest = max_of(most);
    int32_t is_broken = sum_of_i(broken) != 0;
    for (; index < count; index++) {
        if (logits[index] > largest) largest = logits[index];
        is_broken |= logits[index] != logits[index];
    }
    return is_broken || isinf(largest) ? NAN : largest;
}

static int32_t first_of(const float *values, int32_t count, float value) {
    for (int32_t index = 0; index < count; index++) {
        if (values[index] == value) return index;
    }
    return -1;
}

static int32_t count_from(const float *values, int32_t count, float least) {
    vi sum = all_i(0);
    int32_t index = 0, rest = 0;
    for (; index + LANES <= count; index += LANES) sum -= load_f(values + index) >= least;
    for (; index < count; index++) rest += values[index] >= least;
    return rest + sum_of_i(sum);
}

/* Floats in order as integers, and back. */
static int32_t ordered_bits(float value) {
    int32_t bits = (int32_t)bits_of_float(value);
    return bits < 0 ? (int32_t)(0x80000000u - (uint32_t)bits) : bits;
}
static float float_at(int32_t order) {
    return float_of_bits(order < 0 ? 0x80000000u - (uint32_t)order : (uint32_t)order);
}

/* The k-th largest number, by halving what it may be. */
static float kth_largest(const float *values, int32_t count, int32_t k, float most) {
    int64_t low = ordered_bits(-INFINITY), high = ordered_bits(most);
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (count_from(values, count, float_at((int32_t)middle)) >= k) low = middle;
        else high = middle - 1;
    }
    return float_at((int32_t)low);
}

/* Logits to e^((x - most) / temperature), 0 for those below `least` and what is below min_p. */
static void weigh_logits(float *logits, int32_t count, const luce_choice *choice, float most,
                         float least) {
    float temperature = choice->temperature, floor = choice->min_p;
    for (int32_t index = 0; index < count; index += LANES) {
        float tail[LANES];
        int32_t left = count - index < LANES ? count - index : LANES;
        float *at = left == LANES ? logits + index : tail;
        if (at == tail) memcpy(tail, logits + index, (size_t)left * sizeof(float));
        for (int32_t lane = left; lane < LANES; lane++) tail[lane] = -INFINITY;
        vf x = load_f(at), weight = exp_f((x - most) / temperature);
        vi is_kept = (x >= least) & (weight >= floor);
        store_f(at, (vf)((vi)weight & is_kept));
        if (at == tail) memcpy(logits + index, tail, (size_t)left * sizeof(float));
    }
}

/* Sum of those weights that are at least so large, of one block. */
static double block_sum(const float *weights, int32_t count, float least) {
    double sums[8] = {0}, sum = 0;
    int32_t index = 0;
    for (; index + 8 <= count; index += 8) {
        for (int lane = 0; lane < 8; lane++) {
            float weight = weights[index + lane];
            sums[lane] += weight >= least ? weight : 0.0f;
        }
    }
    for (; index < count; index++) sums[0] += weights[index] >= least ? weights[index] : 0.0f;
    for (int lane = 0; lane < 8; lane++) sum += sums[lane];
    return sum;
}

static double sum_from(const float *weights, int32_t count, float least) {
    double sum = 0;
    for (int32_t index = 0; index < count; index += CHOICE_BLOCK) {
        int32_t left = count - index < CHOICE_BLOCK ? count - index : CHOICE_BLOCK;
        sum += block_sum(weights + index, left, least);
    }
    return sum;
}

/* The largest weight such that those as large or larger sum up to `needed`. */
static float least_up_to(const float *weights, int32_t count, double needed) {
    int32_t low = 0, high = ordered_bits(1.0f);
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (sum_from(weights, count, float_at(middle)) >= needed) low = middle;
        else high = middle - 1;
    }
    return float_at(low);
}

/* The same for the share `top_p` of all. What is asked for nearly always lies in a few large ones,
 * and those are quickly looked through. */
static float least_of_nucleus(const float *weights, int32_t count, double top_p) {
    double needed = top_p * sum_from(weights, count, 0);
    float large[MOST_LARGE];
    int32_t found = 0;
    for (int32_t index = 0; index < count && found < MOST_LARGE; index++) {
        if (weights[index] >= LEAST_LARGE) large[found++] = weights[index];
    }
    if (found < MOST_LARGE && sum_from(large, found, 0) >= needed) {
        return least_up_to(large, found, needed);
    }
    return least_up_to(weights, count, needed);
}

/* The first token at which the sum of the weights from `least` on exceeds `target`. */
static int32_t token_at(const float *weights, int32_t count, float least, double target) {
    double before = 0;
    int32_t last = -1;
    for (int32_t start = 0; start < count; start += CHOICE_BLOCK) {
        int32_t left = count - start < CHOICE_BLOCK ? count - start : CHOICE_BLOCK;
        double after = before + block_sum(weights + start, left, least);
        for (int32_t index = start; after > target && index < start + left; index++) {
            if (weights[index] < least || weights[index] <= 0) continue;
            before += weights[index];
            last = index;
            if (before > target) return index;
        }
        /* Rounding may leave the last one of a block just short. */
        if (after > target) return last;
        before = after;
    }
    return last;
}

static int32_t chosen_token(float *logits, int32_t count, const luce_choice *choice) {
    float most = largest_logit(logits, count), least = -INFINITY;
    if (most != most) return -1;
    if (choice->temperature == 0) return first_of(logits, count, most);
    if (choice->top_k > 0 && choice->top_k < count) {
        least = kth_largest(logits, count, choice->top_k, most);
    }
    weigh_logits(logits, count, choice, most, least);
    float floor = 0;
    if (choice->top_p > 0 && choice->top_p < 1) {
        floor = least_of_nucleus(logits, count, choice->top_p);
    }
    double total = sum_from(logits, count, floor), target = choice->uniform * total;
    double below = nextafter(total, 0);
    return token_at(logits, count, floor, target < below ? target : below);
}

static void choose(const luce_op *op, int32_t first, int32_t stop) {
    luce_choice *choices = op->choices;
    for (int64_t row = first; row < stop; row++) {
        choices[row].token = chosen_token(op->out + row * op->width, op->width, &choices[row]);
    }
}
