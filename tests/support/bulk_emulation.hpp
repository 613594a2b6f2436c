// What quant_split.cu asks for beyond the rest: barriers in shared memory that copies are waited for
// at. They are made when somebody waits: what is read before, or overwritten too early, shows.

#include "split_emulation.hpp"

namespace emulation {

struct Barrier {
    int phase = 0, bytes = 0;
    std::vector<Copy> copies;
};
inline std::map<u64 *, Barrier> barriers;

} // namespace emulation

inline void show_barriers() {}
inline void init_barrier(u64 *barrier, int) { emulation::barriers[barrier] = {}; }

inline void expect_bytes(u64 *barrier, int nbytes) {
    emulation::barriers.at(barrier).bytes += nbytes;
}

inline void copy_bulk(char *to, const char *from, int nbytes, u64 *barrier) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || nbytes % 16)
        emulation::fail("a copy is not aligned");
    if (to < shared_memory() || to + nbytes > &emulation::block->shared.back() + 1)
        emulation::fail("a copy goes beyond shared memory");
    emulation::check_range(from, nbytes);
    std::memset(to, 0xff, nbytes);
    emulation::barriers.at(barrier).copies.push_back({to, from, nbytes, nbytes});
}

inline void wait_for(u64 *barrier, int parity) {
    emulation::Barrier &each = emulation::barriers.at(barrier);
    while (each.phase % 2 == parity) {
        const bool is_asked = !each.copies.empty();
        for (const emulation::Copy &copy : each.copies) {
            std::memcpy(copy.to, copy.from, copy.bytes);
            each.bytes -= copy.bytes;
        }
        each.copies.clear();
        if (is_asked && each.bytes == 0)
            ++each.phase;
        else
            emulation::meet(emulation::Waits::number);
    }
}
