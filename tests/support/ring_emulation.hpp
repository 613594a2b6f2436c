// What quant_whole.cu asks for beyond the rest: barriers in shared memory that copies arrive at
// too.
//
// A copy is made when somebody waits for its barrier and nothing else is missing there: what is
// read before, or overwritten too early, shows.

#include "split_emulation.hpp"

namespace emulation {

struct Phases {
    int count, pending, phase;
    int copying = 0; // threads that arrive when their copies are there
    std::vector<Copy> copies;
};

// Of the blocks that run; a barrier's address tells its block.
inline std::map<u64 *, Phases> phases;

inline void make_copies(const std::vector<Copy> &copies) {
    for (const Copy &each : copies) {
        std::memset(each.to, 0, each.bytes);
        std::memcpy(each.to, each.from, each.there);
    }
}

inline void end_phase(Phases &each) {
    if (each.pending)
        return;
    each.pending = each.count;
    ++each.phase;
}

} // namespace emulation

inline void init_barrier(u64 *barrier, int count) {
    emulation::phases[barrier] = {count, count, 0, 0, {}};
}

inline void show_barriers() {}

inline void arrive(u64 *barrier) {
    emulation::Phases &each = emulation::phases.at(barrier);
    if (--each.pending < 0)
        emulation::fail("more threads arrive at a barrier than it is for");
    emulation::end_phase(each);
}

inline void arrive_after_copies(u64 *barrier) {
    emulation::Phases &each = emulation::phases.at(barrier);
    std::vector<emulation::Copy> &open = emulation::block->threads[emulation::block->current].open;
    each.copies.insert(each.copies.end(), open.begin(), open.end());
    ++each.copying;
    open.clear();
}

inline void wait_for(u64 *barrier, int parity) {
    emulation::Phases &each = emulation::phases.at(barrier);
    for (int idle = 0; each.phase % 2 == parity; ++idle) {
        if (idle > 10000)
            emulation::fail("threads wait for each other");
        if (each.copying && each.pending == each.copying) {
            emulation::make_copies(each.copies);
            each.copies.clear();
            each.pending = each.copying = 0;
            emulation::end_phase(each);
            continue;
        }
        emulation::meet(emulation::Waits::number);
    }
}

template <int SECOND> inline void store_eight(char *to, uint4 v) {
    const int lane = emulation::block->current % 32;
    u32 *place = (u32 *)(to + lane / 4 * 16 + lane % 4 * 4);
    place[0] = v.x;
    place[32] = v.y;
    place[SECOND / 4] = v.z;
    place[SECOND / 4 + 32] = v.w;
}

inline u64 shared_matrix_of_warp(const char *at) { return shared_matrix(at); }

template <int COUNT> inline void give_registers() {}
template <int COUNT> inline void take_registers() {}
