/* Paged attention with a running maximum, 64 keys at a time.
 *
 * A unit's keys are cut into spans of 256, each attended to by itself; then the spans are put
 * together in order, by the thread that has them all or that finishes last. What a row gets depends
 * on its own keys alone: spans and segments begin at fixed places, and keys it may not see count
 * exactly 0.
 */

static span_state span_at(const unit_state *unit, int32_t index, float *memory) {
    int32_t begin = LUCE_SPAN * index, end = begin + LUCE_SPAN;
    return (span_state){begin, end < unit->length ? end : unit->length, memory,
                        memory + unit->stride, memory + 2 * unit->stride};
}

/* All spans of a unit, one after the other, or those that are in `partials` already. */
static void finish_few(const unit_state *unit, float *partials, int64_t slot) {
    float own[LUCE_MANY_ROWS * (LUCE_MOST_HEAD_DIM + 2)];
    float most[LUCE_MANY_ROWS], total[LUCE_MANY_ROWS];
    for (int32_t index = 0; LUCE_SPAN * index < unit->length; index++) {
        span_state span = span_at(unit, index, partials == NULL ? own : partials + index * slot);
        if (partials == NULL) attend_few(unit, &span);
        merge_few(unit, &span, most, total);
    }
    for (int32_t row = 0; row < unit->rows; row++) finish_row(unit, row, total[row]);
}

static void finish_many(many_state *many, float *partials, int64_t slot) {
    float own[2][LUCE_UNIT_ROWS * (LUCE_MOST_HEAD_DIM + 2)];
    const unit_state *unit = many->unit;
    span_state all = span_at(unit, 0, partials == NULL ? own[0] : partials);
    if (partials == NULL) attend_many(many, &all);
    for (int32_t index = 1; LUCE_SPAN * index < unit->length; index++) {
        span_state span = span_at(unit, index, partials == NULL ? own[1] : partials + index * slot);
        if (partials == NULL) attend_many(many, &span);
        merge_many(many, &span, &all);
    }
    give_out(unit, all.sums);
    for (int32_t row = 0; row < unit->rows; row++) finish_row(unit, row, all.total[row]);
}

/* Whether the caller has done the last piece of a unit. */
static int is_last(const luce_step *step, const unit_state *unit, int32_t index) {
    int32_t all = (unit->length + LUCE_SPAN - 1) / LUCE_SPAN;
    int32_t *arrivals = step->arrivals + index * unit->op->heads.num_kv_heads + unit->head;
    if (__atomic_add_fetch(arrivals, 1, __ATOMIC_ACQ_REL) < all) return 0;
    __atomic_store_n(arrivals, 0, __ATOMIC_RELAXED);
    return 1;
}

static void attend(const luce_op *op, const luce_step *step, int32_t chunk) {
    int32_t num_kv = op->heads.num_kv_heads, piece = chunk / num_kv, head = chunk % num_kv;
    int32_t index = step->piece_units[piece], span_index = step->piece_spans[piece];
    int64_t each = (int64_t)step->partial_rows * (op->heads.head_dim + 2), slot = num_kv * each;
    int is_whole = span_index < 0;
    float *partials = is_whole ? NULL
                               : step->partials + (piece - span_index) * slot + head * each;
    unit_state unit;
    begin_unit(&unit, op, step, index, head);
    span_state span = {0};
    if (!is_whole) span = span_at(&unit, span_index, partials + span_index * slot);
    if (is_many(unit.rows)) {
        many_state many;
        begin_many(&many, &unit);
        if (!is_whole) attend_many(&many, &span);
        if (is_whole || is_last(step, &unit, index)) finish_many(&many, partials, slot);
        return;
    }
    float queries[LUCE_MANY_ROWS * LUCE_MOST_HEAD_DIM];
    scale_queries(&unit, queries);
    if (!is_whole) attend_few(&unit, &span);
    if (is_whole || is_last(step, &unit, index)) finish_few(&unit, partials, slot);
}
