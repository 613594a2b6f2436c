// A mixture of 5 to 16 tokens behind its router: rows of results, of each pair of a token and an
// expert and of each token and the shared expert.
//
// One block of threads for each multiprocessor: all of them are there at once. Between gate and up,
// and down, whose first weights are on their way by then, those with units of the same experts
// meet.

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    moe_many(const char *x, const i64 *experts, float *inner, float *results, int *arrivals,
             const char *codes, const char *scales, const char *blocks,
             const char *s_codes, const char *s_scales, const char *s_blocks, const char *d_codes,
             const char *d_scales, const char *d_blocks, const char *sd_codes,
             const char *sd_scales, const char *sd_blocks, int tokens) {
    const int lane = threadIdx.x % 32, warp = of_first_lane(threadIdx.x / 32);
    char *memory = shared_memory();
    const Ring ring(memory);
    char *rows = memory + Ring::bytes, *lines = rows + MOST_TOKENS * GateAndUp::x_bytes;
    u64 *there = (u64 *)(lines + X_ROWS * Down::x_bytes);
    const Work work((char *)(there + 2));
    if (threadIdx.x == 0) {
        ring.init();
        init_barrier(there, 1);
        show_barriers();
    }
    work.clear();
    __syncthreads();
    wait_for_kernels_before();
    let_next_kernel_begin();
    const int entries = work.make(experts, tokens);
    if (warp == 0)
        work.share(work.parts[0], entries, GateAndUp::units);
    if (warp == 1)
        work.share(work.parts[1], entries, Down::units);
    __syncthreads();
    const Part first = work.parts[0], second = work.parts[1];
    if (warp == WARPS) {
        const u32 needed = work.tokens_of(first, GateAndUp::units, tokens);
        if (is_chosen()) {
            expect_bytes(there, __popc(needed) * GateAndUp::x_bytes);
#pragma unroll 1
            for (u32 left = needed; left; left &= left - 1) {
                const int token = __ffs(left) - 1;
                copy_bulk(rows + token * GateAndUp::x_bytes, x + token * GateAndUp::x_bytes,
                          GateAndUp::x_bytes, there);
            }
            ring.feed<GateAndUp>(work, first, 0, {codes, scales, blocks},
                                 {s_codes, s_scales, s_blocks});
            ring.feed<Down>(work, second, first.count, {d_codes, d_scales, d_blocks},
                            {sd_codes, sd_scales, sd_blocks});
        }
        return;
    }
    wait_for(there, 0);
    const int next = ring.consume<GateAndUp>(
        warp, first.count,
        [&](const GateAndUp::Weights &weights, const Task &task, int, int line) {
            const int token = line >= tokens * CHOSEN ? line - tokens * CHOSEN : line / CHOSEN;
            GateAndUp::leave(weights, rows + token * GateAndUp::x_bytes,
                             inner + line * SIZE + task.row);
        });
    meet_warp();
    if (lane == 0)
        come(arrivals + blockIdx.x);
    if (second.count == 0)
        return;
    const int end = second.last(Down::units);
    // Those that have units of the same experts.
    if (warp == 0)
        for (int block = work.block_of(first, second.entry, GateAndUp::units, false) + lane;
             block <= work.block_of(first, end, GateAndUp::units, true); block += 32)
            wait_for_all(arrivals + block, WARPS);
    sync_threads(1, WARPS * 32);
    const int groups = (end - second.entry + 1) * (MOST_SLOTS * Down::groups);
    for (int i = threadIdx.x; i < groups; i += WARPS * 32) {
        const Entry entry = work.entries[second.entry + i / (MOST_SLOTS * Down::groups)];
        const int slot = i / Down::groups;
        if (slot % MOST_SLOTS < entry.count)
            Down::quantise(inner + entry.line(slot % MOST_SLOTS) * SIZE,
                           lines + slot * Down::x_bytes, i % Down::groups);
    }
    sync_threads(1, WARPS * 32);
    ring.consume<Down>(next, first.count + second.count,
                       [&](const Down::Weights &weights, const Task &task, int i, int line) {
                           Down::leave(weights, lines + (task.slot + i) * Down::x_bytes,
                                       results + line * HIDDEN + task.row);
                       });
}
