// What decode_few.cu asks for beyond the rest: stores to other blocks of a cluster, whose bytes a
// barrier there waits for. They are made when that block waits: what is read before shows.

#include "split_emulation.hpp"

namespace emulation {

struct Awaited {
    int bytes = 0, expected = 0; // of all phases until now
};
inline std::map<char *, Awaited> awaited;

struct Store {
    char *to, *barrier;
    float4 values;
};
inline std::map<Block *, std::vector<Store>> stores;

} // namespace emulation

inline void init_barrier(u64 *barrier, int) { emulation::awaited[(char *)barrier] = {}; }
inline void show_barriers() {}

inline void expect_bytes(u64 *barrier, int nbytes) {
    emulation::awaited.at((char *)barrier).expected += nbytes;
}

template <int BLOCKS> inline u32 address_in_block(const void *at, int rank) {
    if (rank < 0 || rank >= BLOCKS)
        emulation::fail("a cluster has no such block");
    return (u32)rank << 24 | (u32)((const char *)at - emulation::block->aligned);
}

template <int BLOCKS> inline void store_in_block(u32 at, const float4 &values, u32 barrier) {
    emulation::Block *there = emulation::own_cluster<BLOCKS>().blocks.at(at >> 24);
    char *memory = there->aligned;
    const int size = (int)(&there->shared.back() + 1 - memory);
    if ((at & 0xffffff) % 16 || (int)(at & 0xffffff) + 16 > size)
        emulation::fail("a store is not aligned, or goes beyond shared memory");
    emulation::stores[there].push_back(
        {memory + (at & 0xffffff), memory + (barrier & 0xffffff), values});
}

template <int BLOCKS> inline void wait_for_stores(u64 *barrier, int) {
    emulation::Awaited &mine = emulation::awaited.at((char *)barrier);
    std::vector<emulation::Store> &arrived = emulation::stores[emulation::block];
    do {
        emulation::meet(emulation::Waits::blocks);
        for (const emulation::Store &store : arrived) {
            *(float4 *)store.to = store.values;
            emulation::awaited.at(store.barrier).bytes += 16;
        }
        arrived.clear();
        if (mine.bytes > mine.expected)
            emulation::fail("more is stored than a barrier waits for");
    } while (mine.bytes != mine.expected);
}

namespace emulation {

inline std::map<Thread *, int> meetings; // that a thread came to last

} // namespace emulation

template <int BLOCKS> inline void come_to_cluster() {
    emulation::Cluster &mine = emulation::own_cluster<BLOCKS>();
    emulation::meetings[&emulation::block->threads[emulation::block->current]] = mine.meetings;
    if (++mine.arrived == BLOCKS * (int)emulation::block->threads.size()) {
        mine.arrived = 0;
        ++mine.meetings;
    }
}

template <int BLOCKS> inline void wait_for_cluster() {
    const int meeting =
        emulation::meetings.at(&emulation::block->threads[emulation::block->current]);
    do
        emulation::meet(emulation::Waits::blocks);
    while (emulation::own_cluster<BLOCKS>().meetings == meeting);
}

inline float exp2_of(float x) { return std::exp2(x); }
inline float reciprocal_of(float x) { return 1.0f / x; }

inline u32 bits_of(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

namespace emulation {

inline std::map<Thread *, std::vector<Copy>> closed;

} // namespace emulation

inline void close_copies() {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    std::vector<emulation::Copy> &mine = emulation::closed[&me];
    mine.insert(mine.end(), me.open.begin(), me.open.end());
    me.open.clear();
}

inline void wait_for_closed_copies() {
    emulation::Thread &me = emulation::block->threads[emulation::block->current];
    for (const emulation::Copy &each : emulation::closed[&me]) {
        std::memset(each.to, 0, each.bytes);
        std::memcpy(each.to, each.from, each.there);
    }
    emulation::closed[&me].clear();
}

inline void load_turned(u32 (&to)[4], const uint4 *line) {
    static const uint4 *lines[32];
    const int lane = emulation::block->current % 32;
    meet_warp();
    lines[lane] = line;
    meet_warp();
    for (int i = 0; i < 4; ++i) {
        const u16 *first = (const u16 *)lines[i * 8 + lane % 4 * 2];
        const u16 *second = (const u16 *)lines[i * 8 + lane % 4 * 2 + 1];
        to[i] = first[lane / 4] | (u32)second[lane / 4] << 16;
    }
}
