// The same for kernels that use ops/cuda/hopper.cuh, whose threads wait for each other in more ways.
//
// A thread that waits looks again at its next turn. Copies are made when somebody waits for them,
// products when their group is waited for: what is read or overwritten too early shows.

#include "cuda_emulation.hpp"

#include "cluster_emulation.hpp"

#include <functional>
#include <map>

#define __grid_constant__

namespace emulation {

struct PageCopy {
    char *to;
    const char *from;
    i64 line;
    int lines;
    int nbytes = 0; // of one that is no page
};

struct Phases {
    int count, pending, bytes, phase;
    std::vector<PageCopy> copies;
    std::vector<Copy> bulk; // plain ones
};

struct Warp {
    u32 given[32][4], seen[32][4];
    int arrived = 0;
    long generation = 0;
};

struct NamedBarrier {
    int arrived = 0;
    long generation = 0;
};

struct Products {
    std::vector<std::function<void()>> open;
    std::deque<std::vector<std::function<void()>>> groups;
};

inline std::map<u64 *, Phases> phases;
inline std::vector<Warp> warps;
inline std::vector<Products> products;
inline NamedBarrier named[16];
inline long progress;

inline void yield() { meet(Waits::nothing); }

// What all lanes of the warp bring.
inline const u32 (*exchange(u32 a, u32 b = 0, u32 c = 0, u32 d = 0))[4] {
    Warp &warp = warps[block->current / 32];
    const u32 mine[4] = {a, b, c, d};
    std::memcpy(warp.given[block->current % 32], mine, 16);
    const long generation = warp.generation;
    if (++warp.arrived == 32) {
        std::memcpy(warp.seen, warp.given, sizeof warp.seen);
        warp.arrived = 0;
        ++warp.generation;
        ++progress;
    }
    while (warp.generation == generation)
        yield();
    return warp.seen;
}

template <class T> u32 bits_of(T value) {
    static_assert(sizeof value == 4, "lanes exchange words");
    u32 bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

template <class T> T from_lane(T value, int lane) {
    const u32 bits = exchange(bits_of(value))[lane][0];
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void end_phase(Phases &each) {
    if (each.pending || each.bytes)
        return;
    each.pending = each.count;
    ++each.phase;
    ++progress;
}

inline int shared_offset(const void *at) { return (int)((const char *)at - block->aligned); }

// Where a swizzled matrix has what would be at this offset.
inline int unswizzled(int offset) { return offset ^ (offset >> 7 & 7) << 4; }

inline void make_copies(Phases &each) {
    for (const PageCopy &copy : each.copies) {
        if (copy.nbytes)
            std::memcpy(copy.to, copy.from, copy.nbytes);
        each.bytes -= copy.nbytes;
        for (int at = 0; at < copy.lines * 128; at += 16) {
            char *to = block->aligned + unswizzled(shared_offset(copy.to) + at);
            if (!copy.from) { // Beyond a matrix's end.
                std::memset(to, 0, 16);
                continue;
            }
            const char *from = copy.from + at / 128 * copy.line + at % 128;
            check_range(from, 16);
            std::memcpy(to, from, 16);
        }
        each.bytes -= copy.lines * 128;
    }
    each.copies.clear();
    for (const Copy &copy : each.bulk) {
        std::memcpy(copy.to, copy.from, copy.bytes);
        each.bytes -= copy.bytes;
    }
    each.bulk.clear();
    end_phase(each);
}

inline double shared_number(int offset) {
    u16 bits;
    if (offset < 0 || offset + 2 > (int)block->shared.size())
        fail("a product goes beyond shared memory");
    std::memcpy(&bits, block->aligned + unswizzled(offset), 2);
    return from_bfloat16(bits);
}

// This thread's part of c += A B, the two rows of A given.
template <int EIGHTS>
void add_product(float (*c)[4], const double (*a)[16], std::function<double(int, int)> b) {
    const int lane = block->current % 32;
    for (int eight = 0; eight < EIGHTS; ++eight)
        for (int i = 0; i < 4; ++i) {
            double sum = c[eight][i];
            for (int k = 0; k < 16; ++k)
                sum += a[i / 2][k] * b(k, eight * 8 + lane % 4 * 2 + i % 2);
            c[eight][i] = (float)sum;
        }
}

} // namespace emulation

// words: offset of the first number, bytes between heads, tokens and blocks, tokens of a block,
// number of blocks. The numbers lie behind them; whoever copies it remembers where.
struct TensorMap {
    u64 words[16];
    const char *numbers;
    TensorMap(const TensorMap &other) : numbers((const char *)&other + sizeof words) {
        std::memcpy(words, other.words, sizeof words);
    }
};

inline u32 shared_address(const void *at) { return emulation::shared_offset(at); }

inline void init_barrier(u64 *barrier, int count) {
    emulation::phases[barrier] = {count, count, 0, 0, {}, {}};
}

inline void arrive(u64 *barrier) {
    emulation::Phases &each = emulation::phases.at(barrier);
    if (--each.pending < 0)
        emulation::fail("more threads arrive at a barrier than it is for");
    emulation::end_phase(each);
}

inline void expect_bytes(u64 *barrier, int nbytes) {
    emulation::phases.at(barrier).bytes += nbytes;
    arrive(barrier);
}

inline void wait_for(u64 *barrier, int parity) {
    emulation::Phases &each = emulation::phases.at(barrier);
    while (each.phase % 2 == parity) {
        emulation::make_copies(each);
        if (each.phase % 2 == parity)
            emulation::yield();
    }
    ++emulation::progress;
}

inline void copy_page(char *to, const TensorMap *map, int dim, int head, int block,
                      u64 *barrier) {
    const u64 *words = map->words;
    if (block < 0 || (u64)block >= words[5])
        emulation::fail("a page is copied that is not there");
    const char *from = map->numbers + words[0] + dim * 2 + head * words[1] + block * words[3];
    std::memset(to, 0xff, words[4] * 128);
    emulation::phases.at(barrier).copies.push_back({to, from, (i64)words[2], (int)words[4]});
}

// words of a matrix: 0, 0, bytes between its rows, 0, rows of a box, rows, columns.
inline void copy_rows(char *to, const TensorMap *map, int column, int row, u64 *barrier) {
    const u64 *words = map->words;
    const int lines = (int)words[4], there = std::min(lines, (int)words[5] - row);
    if (row < 0 || column < 0 || (u64)column + 64 > words[6])
        emulation::fail("columns are copied that are not there");
    std::memset(to, 0xff, lines * 128);
    emulation::Phases &each = emulation::phases.at(barrier);
    if (there > 0)
        each.copies.push_back(
            {to, map->numbers + (u64)row * words[2] + column * 2, (i64)words[2], there});
    if (there < lines)
        each.copies.push_back(
            {to + std::max(there, 0) * 128, nullptr, 0, lines - std::max(there, 0)});
}

inline void fetch_map(const TensorMap *) {}
inline bool is_chosen() { return emulation::block->current % 32 == 0; }

template <int BLOCKS> inline void come_to_cluster() {
    emulation::Cluster &mine = emulation::own_cluster<BLOCKS>();
    if (++mine.arrived == BLOCKS * (int)emulation::block->threads.size()) {
        mine.arrived = 0;
        ++mine.meetings;
    }
    ++emulation::progress;
}

// Of the first meeting.
template <int BLOCKS> inline void wait_for_cluster() {
    while (!emulation::own_cluster<BLOCKS>().meetings)
        emulation::meet(emulation::Waits::blocks);
}

template <int BLOCKS> inline u32 address_in_block(const void *at, int rank) {
    if (rank < 0 || rank >= BLOCKS)
        emulation::fail("a cluster has no such block");
    return (u32)rank << 24 | shared_address(at);
}

namespace emulation {

// What a block stored in another: it is there when that one waits for it.
struct Store {
    u32 at, barrier;
    float4 values;
};
inline std::map<Block *, std::vector<Store>> stores;

} // namespace emulation

template <int BLOCKS> inline void store_in_block(u32 at, const float4 &values, u32 barrier) {
    emulation::Block *there = emulation::own_cluster<BLOCKS>().blocks.at(at >> 24);
    emulation::stores[there].push_back({at & 0xffffff, barrier & 0xffffff, values});
    ++emulation::progress;
}

template <int BLOCKS> inline void wait_for_stores(u64 *barrier, int parity) {
    emulation::Phases &each = emulation::phases.at(barrier);
    std::vector<emulation::Store> &arrived = emulation::stores[emulation::block];
    while (each.phase % 2 == parity) {
        for (const emulation::Store &store : arrived) {
            *(float4 *)(emulation::block->aligned + store.at) = store.values;
            emulation::phases.at((u64 *)(emulation::block->aligned + store.barrier)).bytes -= 16;
        }
        arrived.clear();
        emulation::end_phase(each);
        if (each.phase % 2 == parity)
            emulation::meet(emulation::Waits::blocks);
    }
    ++emulation::progress;
}

inline u64 swizzled(const char *at, int columns) {
    return (u64)columns << 32 | shared_address(at);
}

inline u64 advance(u64 matrix, int nbytes) { return matrix + nbytes; }

template <int EIGHTS> void multiply_shared(float (&c)[EIGHTS][4], u64 a, u64 b, int adds) {
    const int row = emulation::block->current / 32 % 4 * 16 + emulation::block->current % 32 / 4;
    float(*sums)[4] = c;
    emulation::products[emulation::block->current].open.push_back([=] {
        double rows[2][16];
        for (int i = 0; i < 32; ++i)
            rows[i / 16][i % 16] =
                emulation::shared_number((u32)a + (row + i / 16 * 8) * 128 + i % 16 * 2);
        if (!adds)
            std::memset(sums, 0, sizeof c);
        emulation::add_product<EIGHTS>(sums, rows, [=](int k, int column) {
            return emulation::shared_number((u32)b + column * 128 + k * 2);
        });
    });
}

namespace emulation {

// This thread's two rows of A, 16 numbers each, of which the lanes of its quad have four.
inline std::vector<double> rows_of_registers(const u32 (&a)[4]) {
    const u32(*lanes)[4] = exchange(a[0], a[1], a[2], a[3]);
    const int quad = block->current % 32 / 4;
    std::vector<double> rows(32);
    for (int i = 0; i < 32; ++i) {
        const int k = i % 16, word = i / 16 + k / 8 * 2;
        rows[i] = from_bfloat16(lanes[quad * 4 + k % 8 / 2][word] >> k % 2 * 16 & 0xffff);
    }
    return rows;
}

} // namespace emulation

template <int EIGHTS>
void multiply_rows(float (&c)[EIGHTS][4], const u32 (&a)[4], u64 b, int adds) {
    const std::vector<double> rows = emulation::rows_of_registers(a);
    float(*sums)[4] = c;
    emulation::products[emulation::block->current].open.push_back([=] {
        if (!adds)
            std::memset(sums, 0, sizeof c);
        emulation::add_product<EIGHTS>(sums, (const double(*)[16])rows.data(),
                                       [=](int k, int column) {
                                           return emulation::shared_number((u32)b + column * 128 +
                                                                           k * 2);
                                       });
    });
}

template <int EIGHTS>
void multiply_registers(float (&c)[EIGHTS][4], const u32 (&a)[4], u64 b) {
    const std::vector<double> rows = emulation::rows_of_registers(a);
    float(*sums)[4] = c;
    emulation::products[emulation::block->current].open.push_back([=] {
        emulation::add_product<EIGHTS>(sums, (const double(*)[16])rows.data(),
                                       [=](int k, int column) {
                                           return emulation::shared_number(
                                               (u32)b + column / 64 * (int)(b >> 32) + k * 128 +
                                               column % 64 * 2);
                                       });
    });
}

inline void end_group() {
    emulation::Products &mine = emulation::products[emulation::block->current];
    mine.groups.push_back(std::move(mine.open));
    mine.open.clear();
}

template <int LEFT, int PLACE = 0> void wait_for_groups() {
    emulation::Products &mine = emulation::products[emulation::block->current];
    for (; mine.groups.size() > LEFT; mine.groups.pop_front())
        for (const auto &product : mine.groups.front())
            product();
    emulation::exchange(0); // All lanes of the warp wait here.
}

inline void join_threads(int barrier, int count) {
    emulation::NamedBarrier &each = emulation::named[barrier];
    if (++each.arrived == count) {
        each.arrived = 0;
        ++each.generation;
        ++emulation::progress;
    }
}

inline void sync_threads(int barrier, int count) {
    emulation::NamedBarrier &each = emulation::named[barrier];
    const long generation = each.generation;
    join_threads(barrier, count);
    while (each.generation == generation)
        emulation::yield();
}

inline void show_barriers() {}
template <int COUNT> void give_registers() {}
template <int COUNT> void take_registers() {}
inline void __syncwarp() { emulation::exchange(0); }
template <class T> T __shfl_xor_sync(u32, T value, int bits) {
    return emulation::from_lane(value, emulation::block->current % 32 ^ bits);
}
template <class T> T __shfl_up_sync(u32, T value, int count) {
    const int lane = emulation::block->current % 32;
    return emulation::from_lane(value, lane < count ? lane : lane - count);
}
template <class T> T __shfl_sync(u32, T value, int lane) {
    return emulation::from_lane(value, lane);
}
inline u32 __ballot_sync(u32, bool is) {
    const u32(*lanes)[4] = emulation::exchange(is);
    u32 bits = 0;
    for (int lane = 0; lane < 32; ++lane)
        bits |= lanes[lane][0] << lane;
    return bits;
}
inline bool __all_sync(u32 mask, bool is) { return __ballot_sync(mask, is) == ~0u; }
inline int __ffs(u32 bits) { return __builtin_ffs((int)bits); }
inline float exp2_of(float x) { return std::exp2(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float reciprocal_of(float x) { return 1.0f / x; }

namespace emulation {

struct State {
    std::map<u64 *, Phases> phases;
    std::vector<Warp> warps;
    std::vector<Products> products;
    NamedBarrier named[16];
    void swap() {
        std::swap(phases, emulation::phases);
        std::swap(warps, emulation::warps);
        std::swap(products, emulation::products);
        std::swap(named, emulation::named);
    }
};

// Runs `block` until it is done, true, or waits for other blocks.
inline bool run_patient_block(bool is_backwards) {
    std::vector<Thread> &threads = block->threads;
    const int count = (int)threads.size();
    if (warps.empty()) {
        warps.assign(count / 32, Warp());
        products.assign(count, Products());
    }
    int done = 0, at_barrier = 0;
    for (Thread &thread : threads)
        if (thread.waits == Waits::blocks)
            thread.waits = Waits::nothing;
    for (int idle = 0; done < count;) {
        const long before = progress;
        done = at_barrier = 0;
        int away = 0;
        for (int i = 0; i < count; ++i) {
            Thread &thread = threads[is_backwards ? count - 1 - i : i];
            if (thread.waits == Waits::nothing) {
                block->current = (int)(&thread - threads.data());
                swapcontext(&block->scheduler, &thread.context);
            }
            done += thread.waits == Waits::done;
            at_barrier += thread.waits == Waits::block;
            away += thread.waits == Waits::blocks;
        }
        if (at_barrier && at_barrier + done == count) {
            for (Thread &thread : threads)
                if (thread.waits == Waits::block)
                    thread.waits = Waits::nothing;
            ++progress;
        }
        if (away && away + at_barrier + done == count)
            return false;
        idle = progress == before ? idle + 1 : 0;
        if (idle > 8 && away) // Those that wait hold up others of their warp.
            return false;
        if (idle > 8 && done < count)
            fail("threads wait for each other");
    }
    return true;
}

template <class... A> int run_patient_program(void (*kernel)(A...), char **words) {
    Arguments arguments(words[1]);
    Call<A...> call = {kernel, &arguments};
    gridDim = {std::atoi(words[3]), std::atoi(words[4]), 1};
    const bool is_backwards = std::atoi(words[7]);
    const int count = gridDim.x * gridDim.y;
    std::vector<std::unique_ptr<Block>> waiting;
    std::map<Block *, State> states;
    auto made = std::make_unique<Block>();
    const auto run = [&](std::unique_ptr<Block> &each) {
        block = each.get();
        blockIdx = block->index;
        states[block].swap();
        const bool is_done = run_patient_block(is_backwards);
        states[block].swap();
        if (is_done)
            states.erase(block);
        return is_done;
    };
    for (int i = 0; i < count; ++i) {
        const int index = is_backwards ? count - 1 - i : i;
        block = made.get();
        block->index = {index % gridDim.x, index / gridDim.x, 0};
        start_block(call.enter, &call, std::atoi(words[5]), std::atoi(words[6]));
        if (run(made))
            continue;
        waiting.push_back(std::move(made));
        made = std::make_unique<Block>();
    }
    for (int idle = 0; !waiting.empty(); ++idle) {
        const size_t before = waiting.size();
        const long seen = progress;
        for (auto each = waiting.begin(); each != waiting.end();)
            each = run(*each) ? waiting.erase(each) : each + 1;
        idle = waiting.size() < before || progress != seen ? 0 : idle;
        if (idle > 8)
            fail("blocks wait for each other");
    }
    arguments.write(words[2]);
    return 0;
}

} // namespace emulation

#define run_program run_patient_program
