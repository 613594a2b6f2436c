// A host that runs the text of a CUDA kernel: its names, and the primitives of
// ops/cuda/primitives.cuh, for the threads of one block after another.
//
// Threads are fibres. One runs until it meets others: a warp's product, or a barrier of the block.
// Either whole warps run one after the other (a late barrier shows in what the first sees), or the
// last comes first. Blocks run one after another, until they are done or wait for others: what they
// leave for each other is always there in time, and its order is not tested. Dynamic shared memory
// begins as NaN, and so does the target of an asynchronous copy, until the thread that began it has
// waited for its batch.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

typedef uint32_t u32;
typedef uint16_t u16;
typedef long long i64;
typedef uint64_t u64;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class A, class B> inline auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }

struct Index { int x, y, z; };

namespace emulation {

struct Range {
    const char *begin, *end;
};
inline std::vector<Range> memory; // what a kernel may read and write

[[noreturn]] inline void fail(const char *what) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

struct Copy {
    char *to;
    const char *from;
    int bytes, there;
};

enum class Waits { nothing, warp, four_warps, some, number, block, blocks, done };

struct Thread {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 16);
    Waits waits = Waits::nothing;
    std::vector<Copy> open;
    u32 operands[6];
    float (*number)(u32 bits); // of a half of an operand
    float *sums, *results;
    float given, received; // of an exchange with the lane whose number differs in these bits,
    int across;            // 0 of a product, -1 of one that gives a number to all
    int given_number, received_number, giver = 0;
    int barrier, barrier_threads; // that it waits at with some of the others
    const char *matrix; // of a product of four warps, its columns in eights, and whether it adds
    int eights, adds;
};

struct Block {
    Index index;
    int arrived[16]; // at a barrier that is not everybody's
    std::vector<Thread> threads;
    std::vector<char> shared;
    char *aligned;
    ucontext_t scheduler;
    int current = 0;
    void (*kernel)(void *);
    void *arguments;
};

inline Block *block;

inline void meet(Waits where) {
    Thread &me = block->threads[block->current];
    me.waits = where;
    swapcontext(&me.context, &block->scheduler);
}

inline void enter() {
    block->kernel(block->arguments);
    Thread &me = block->threads[block->current];
    if (!me.open.empty())
        fail("a thread ended with copies it never committed");
    me.waits = Waits::done;
    swapcontext(&me.context, &block->scheduler);
}

inline void check_range(const char *from, int bytes) {
    for (const Range &each : memory)
        if (from >= each.begin && from + bytes <= each.end)
            return;
    fail("memory is read that is not the kernel's");
}

inline float from_bfloat16(u32 bits) {
    u32 wide = bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// The product of a warp all of whose threads have brought their operands.
inline void multiply_warp(Thread *lanes) {
    static const int offsets[4] = {0, 1, 8, 9};
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const u32 *from = lanes[lane].operands;
        for (int i = 0; i < 4; ++i) {
            int k = lane % 4 * 2 + offsets[i], shift = i % 2 * 16;
            a[lane / 4][k] = lanes->number(from[i / 2 * 2] >> shift & 0xffff);
            a[lane / 4 + 8][k] = lanes->number(from[i / 2 * 2 + 1] >> shift & 0xffff);
            b[k][lane / 4] = lanes->number(from[4 + i / 2] >> shift & 0xffff);
        }
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            double sum = lanes[lane].sums[i];
            for (int k = 0; k < 16; ++k)
                sum += (double)a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
            lanes[lane].sums[i] = (float)sum;
        }
}

// The product of four warps all of whose threads have brought their operands.
inline void multiply_four_warps(Thread *threads) {
    for (int warp = 0; warp < 4; ++warp) {
        Thread *lanes = threads + warp * 32;
        std::vector<float> sums;
        for (int lane = 0; lane < 32; ++lane)
            sums.insert(sums.end(), lanes[lane].sums, lanes[lane].sums + 4 * lanes->eights);
        for (int eight = 0; eight < lanes->eights; ++eight) {
            for (int lane = 0; lane < 32; ++lane) {
                Thread &each = lanes[lane];
                // As `multiply_warp` takes them: indices 2t, 2t + 1 and 2t + 8, 2t + 9 of a column.
                const char *line = threads->matrix + eight * 256 + lane / 4 * 16 + lane % 4 * 4;
                std::memcpy(&each.operands[4], line, 4);
                std::memcpy(&each.operands[5], line + 128, 4);
                each.sums = &sums[(lane * lanes->eights + eight) * 4];
                if (!each.adds)
                    std::memset(each.sums, 0, 16);
            }
            multiply_warp(lanes);
        }
        for (int lane = 0; lane < 32; ++lane)
            std::memcpy(lanes[lane].results, &sums[lane * 4 * lanes->eights],
                        16 * lanes->eights);
    }
}

// Whether four warps had met for a product, and can go on.
inline bool four_warps_went_on(int first_warp) {
    Thread *threads = &block->threads[first_warp * 32];
    int waiting = 0;
    for (int i = 0; i < 128 && first_warp * 32 + i < (int)block->threads.size(); ++i)
        waiting += threads[i].waits == Waits::four_warps;
    if (!waiting)
        return false;
    if (waiting != 128)
        fail("not all of four warps multiply together");
    multiply_four_warps(threads);
    for (int i = 0; i < 128; ++i)
        threads[i].waits = Waits::nothing;
    return true;
}

// Whether those can go on who wait for a number, or at a barrier that enough have come to.
inline bool some_went_on() {
    bool went_on = false;
    for (Thread &each : block->threads)
        if (each.waits == Waits::number) {
            each.waits = Waits::nothing;
            went_on = true;
        }
    for (int barrier = 0; barrier < 16; ++barrier) {
        int needed = 0;
        for (const Thread &each : block->threads)
            if (each.waits == Waits::some && each.barrier == barrier)
                needed = each.barrier_threads;
        if (!needed || block->arrived[barrier] < needed)
            continue;
        if (block->arrived[barrier] > needed)
            fail("more threads came to a barrier than it is for");
        block->arrived[barrier] = 0;
        for (Thread &each : block->threads)
            if (each.waits == Waits::some && each.barrier == barrier)
                each.waits = Waits::nothing;
        went_on = true;
    }
    return went_on;
}

inline void run_until_met(int warp) {
    Thread *lanes = &block->threads[warp * 32];
    for (;;) {
        for (int lane = 0; lane < 32; ++lane)
            if (lanes[lane].waits == Waits::nothing) {
                block->current = warp * 32 + lane;
                swapcontext(&block->scheduler, &lanes[lane].context);
            }
        for (int lane = 1; lane < 32; ++lane)
            if (lanes[lane].waits != lanes[0].waits)
                fail("threads of a warp went different ways");
        if (lanes[0].waits != Waits::warp)
            return;
        const int across = lanes[0].across;
        for (int lane = 0; lane < 32; ++lane) {
            lanes[lane].received = lanes[across > 0 ? lane ^ across : lane].given;
            lanes[lane].received_number = lanes[lanes[lane].giver].given_number;
        }
        if (!across)
            multiply_warp(lanes);
        for (int lane = 0; lane < 32; ++lane)
            lanes[lane].waits = Waits::nothing;
    }
}

// Makes `block` ready to begin.
inline void start_block(void (*kernel)(void *), void *arguments, int num_threads,
                        int shared_bytes) {
    block->kernel = kernel;
    block->arguments = arguments;
    block->threads.resize(num_threads);
    block->shared.assign(shared_bytes + 128, (char)0xff);
    block->aligned = &block->shared[127] - ((uintptr_t)&block->shared[127] & 127);
    std::memset(block->arrived, 0, sizeof block->arrived);
    for (Thread &thread : block->threads) {
        thread.waits = Waits::nothing;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, enter, 0);
    }
}

// Runs `block` until it is done, true, or waits for other blocks.
inline bool run_block(bool last_warp_first) {
    const int num_warps = (int)block->threads.size() / 32;
    for (;;) {
        for (Thread &thread : block->threads)
            thread.waits = thread.waits == Waits::done ? Waits::done : Waits::nothing;
        bool went_on = true;
        while (went_on) {
            for (int i = 0; i < num_warps; ++i)
                run_until_met(last_warp_first ? num_warps - 1 - i : i);
            went_on = some_went_on();
            for (int warp = 0; warp < num_warps; warp += 4)
                went_on |= four_warps_went_on(warp);
        }
        int at_barrier = 0, away = 0;
        for (const Thread &thread : block->threads) {
            at_barrier += thread.waits == Waits::block;
            away += thread.waits == Waits::blocks;
        }
        if (at_barrier && at_barrier < (int)block->threads.size())
            fail("some threads ended while others wait for them");
        if (!at_barrier)
            return !away;
    }
}

} // namespace emulation

struct ThreadIndex {
    struct { operator int() const { return emulation::block->current; } } x;
};
static ThreadIndex threadIdx;
static Index blockIdx, gridDim;

inline void __syncthreads() { emulation::meet(emulation::Waits::block); }
inline void __threadfence() {}
inline int atomicAdd(int *at, int value) { return (*at += value) - value; }
template <class T> inline T __ldcg(const T *at) { return *at; }

inline float __int_as_float(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline u32 __byte_perm(u32 low, u32 high, u32 selector) {
    uint64_t both = (uint64_t)high << 32 | low;
    u32 word = 0;
    for (int i = 0; i < 4; ++i)
        word |= (u32)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return word;
}

namespace emulation {

inline void multiply_by(float (*number)(u32), float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3,
                        u32 b0, u32 b1) {
    Thread &me = block->threads[block->current];
    const u32 operands[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(me.operands, operands, sizeof operands);
    me.number = number;
    me.sums = c;
    me.across = 0;
    meet(Waits::warp);
}

} // namespace emulation

inline void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    emulation::multiply_by(emulation::from_bfloat16, c, a0, a1, a2, a3, b0, b1);
}

inline float inverse_root(float value) { return 1.0f / std::sqrt(value); }

inline int of_lane(int value, int lane) {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    me.given_number = value;
    me.giver = lane;
    me.across = -1;
    emulation::meet(emulation::Waits::warp);
    return me.received_number;
}

inline float of_lane(float value, int lane) {
    int bits;
    std::memcpy(&bits, &value, 4);
    return __int_as_float((u32)of_lane(bits, lane));
}

inline int of_first_lane(int value) { return of_lane(value, 0); }
inline void bring_closer(const u16 *from) {
    emulation::check_range((const char *)from, 2);
}

inline void meet_warp() { of_first_lane(0); }

inline void tell(int *at, int number) {
    meet_warp();
    *at = number;
}

inline void wait_for(const int *at, int least) {
    while (*at < least)
        emulation::meet(emulation::Waits::number);
}

template <int BARRIER, int THREADS> inline void pass() { emulation::block->arrived[BARRIER] += 1; }

template <int BARRIER, int THREADS> inline void wait_at() {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    me.barrier = BARRIER;
    me.barrier_threads = THREADS;
    emulation::block->arrived[BARRIER] += 1;
    emulation::meet(emulation::Waits::some);
}

inline int arrive(int *counter) { return (*counter)++; }

inline float of_lane_across(float value, int bits) {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    me.given = value;
    me.across = bits;
    emulation::meet(emulation::Waits::warp);
    return me.received;
}

inline void load_once(u32 *to, const u16 *from) {
    if ((uintptr_t)from % 16)
        emulation::fail("a load is not aligned");
    emulation::check_range((const char *)from, 16);
    std::memcpy(to, from, 16);
}

inline u64 shared_matrix(const char *at) { return (u64)(uintptr_t)at; }
inline u64 shared_matrix_after(u64 at, int bytes) { return at + bytes; }

template <int EIGHTS>
inline void multiply_together(float (&c)[EIGHTS][4], u32 a0, u32 a1, u32 a2, u32 a3, u64 b,
                              int adds) {
    static_assert(EIGHTS <= 8 && (EIGHTS & (EIGHTS - 1)) == 0, "primitives.cuh has it not");
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    const u32 operands[6] = {a0, a1, a2, a3, 0, 0};
    std::memcpy(me.operands, operands, sizeof operands);
    me.number = emulation::from_bfloat16;
    me.sums = me.results = c[0];
    me.matrix = (const char *)(uintptr_t)b;
    me.eights = EIGHTS;
    me.adds = adds;
    emulation::meet(emulation::Waits::four_warps);
}

inline void begin_products() {}
inline void commit_products() {}
template <int LEFT> inline void wait_for_batches() {}
inline void show_to_products() {}
inline void settle(float &) {}

inline float half_to_float(u32 bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 0    ? std::ldexp((float)fraction, -24)
                 : exponent == 31 ? (fraction ? NAN : INFINITY)
                                  : std::ldexp((float)(1024 + fraction), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

inline float bfloat16_to_float(u16 bits) { return emulation::from_bfloat16(bits); }

inline u16 float_to_bfloat16(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value))
        return 0x7fff;
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline u32 pack_bfloat16(float low, float high) {
    return float_to_bfloat16(low) | (u32)float_to_bfloat16(high) << 16;
}

inline u32 multiply_bfloat16(u32 a, u32 b) {
    const float low = emulation::from_bfloat16(a & 0xffff) * emulation::from_bfloat16(b & 0xffff);
    return pack_bfloat16(low, emulation::from_bfloat16(a >> 16) * emulation::from_bfloat16(b >> 16));
}

inline void let_next_kernel_begin() {}
inline void wait_for_kernels_before() {}

inline char *shared_memory() { return emulation::block->aligned; }

template <int BYTES> inline void copy_async(char *to, const char *from, int there) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "not a size that can be copied");
    if ((uintptr_t)to % BYTES || (uintptr_t)from % BYTES)
        emulation::fail("a copy is not aligned");
    const char *shared = shared_memory(), *end = &emulation::block->shared.back() + 1;
    if (to < shared || to + BYTES > end)
        emulation::fail("a copy goes beyond shared memory");
    if (there)
        emulation::check_range(from, there);
    std::memset(to, 0xff, BYTES);
    emulation::block->threads[emulation::block->current].open.push_back({to, from, BYTES, there});
}

namespace emulation {

// Arguments come as a file of sizes and bytes, a buffer for a pointer and the value for a number,
// and go back as they are after the kernel ran. In place of a size may stand which earlier
// argument's memory is meant, as -1 - index.
struct Arguments {
    std::vector<std::vector<uint64_t>> buffers;
    std::vector<uint64_t> sizes;

    explicit Arguments(const char *path) {
        std::FILE *file = std::fopen(path, "rb");
        uint64_t size;
        while (file && std::fread(&size, 8, 1, file) == 1) {
            sizes.push_back(size);
            buffers.emplace_back();
            if ((int64_t)size < 0)
                continue;
            buffers.back().resize(size / 8 + 34);
            char *begin = data(sizes.size() - 1);
            if (std::fread(begin, 1, size, file) != size)
                fail("the file of arguments is cut short");
            memory.push_back({begin, begin + size});
        }
        if (file)
            std::fclose(file);
    }

    char *data(size_t index) {
        if ((int64_t)sizes[index] < 0)
            index = -1 - (int64_t)sizes[index];
        uintptr_t at = (uintptr_t)buffers[index].data();
        return (char *)((at + 255) & ~(uintptr_t)255);
    }

    template <class T> T get(size_t index, T *) { return *(T *)data(index); }
    template <class T> T *get(size_t index, T **) { return (T *)data(index); }

    void write(const char *path) {
        std::FILE *file = std::fopen(path, "wb");
        for (size_t i = 0; i < sizes.size(); ++i)
            if ((int64_t)sizes[i] >= 0 && std::fwrite(data(i), 1, sizes[i], file) != sizes[i])
                fail("the file of results cannot be written");
        std::fclose(file);
    }
};

template <class... A> struct Call {
    void (*kernel)(A...);
    Arguments *arguments;
    template <size_t... I> void run(std::index_sequence<I...>) {
        kernel(arguments->get(I, (A *)nullptr)...);
    }
    static void enter(void *call) { ((Call *)call)->run(std::index_sequence_for<A...>()); }
};

// program IN OUT GRID_X GRID_Y THREADS SHARED_BYTES BACKWARDS
template <class... A> int run_program(void (*kernel)(A...), char **words) {
    Arguments arguments(words[1]);
    Call<A...> call = {kernel, &arguments};
    gridDim = {std::atoi(words[3]), std::atoi(words[4]), 1};
    bool is_backwards = std::atoi(words[7]);
    int count = gridDim.x * gridDim.y;
    auto made = std::make_unique<Block>();
    std::vector<std::unique_ptr<Block>> waiting;
    const auto run = [&](std::unique_ptr<Block> &each) {
        block = each.get();
        blockIdx = block->index;
        return run_block(is_backwards);
    };
    for (int i = 0; i < count; ++i) {
        int index = is_backwards ? count - 1 - i : i;
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
        for (auto each = waiting.begin(); each != waiting.end();)
            each = run(*each) ? waiting.erase(each) : each + 1;
        if (waiting.size() < before)
            idle = 0;
        else if (idle > 8)
            fail("blocks wait for each other");
    }
    arguments.write(words[2]);
    return 0;
}

} // namespace emulation
