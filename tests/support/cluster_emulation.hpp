// Clusters of blocks of threads, for what emulates the rest: blocks of a cluster are neighbours in x.

#include <map>

#define __cluster_dims__(...)

namespace emulation {

struct Cluster {
    int arrived = 0, meetings = 0;
    std::map<int, Block *> blocks;
};
inline std::map<int, Cluster> clusters;

template <int BLOCKS> Cluster &own_cluster() {
    return clusters[(blockIdx.y * gridDim.x + blockIdx.x) / BLOCKS];
}

} // namespace emulation

template <int BLOCKS> inline int rank_in_cluster() {
    emulation::own_cluster<BLOCKS>().blocks[blockIdx.x % BLOCKS] = emulation::block;
    return blockIdx.x % BLOCKS;
}

template <int BLOCKS> inline void meet_cluster() {
    emulation::Cluster &mine = emulation::own_cluster<BLOCKS>();
    const int meeting = mine.meetings;
    if (++mine.arrived == BLOCKS * (int)emulation::block->threads.size()) {
        mine.arrived = 0;
        ++mine.meetings;
    }
    do
        emulation::meet(emulation::Waits::blocks);
    while (mine.meetings == meeting);
}

template <int BLOCKS> inline void meet_cluster_again() { meet_cluster<BLOCKS>(); }

template <int BLOCKS> inline float4 load_of_block(const float4 *at, int rank) {
    const char *own = emulation::block->aligned;
    return *(const float4 *)(emulation::own_cluster<BLOCKS>().blocks.at(rank)->aligned +
                             ((const char *)at - own));
}
