// x of a stage for `multiply_together`: by group and half of its products, by eights of tokens. A
// warp has the same eights of all groups, or of each few of them: then what changes from one to the
// next is known to the compiler.
#define EIGHTS (TOKENS / 8)
#define ARRANGERS (WARPS / EIGHTS >= 4 ? 4 : WARPS / EIGHTS >= 2 ? 2 : 1) // of the same eight
#define ARRANGE_TURNS (ARRANGERS > 1 ? 1 : (EIGHTS + WARPS - 1) / WARPS) // for each group

struct Arranger {
    int eight, first, to; // its first eight of tokens, its first group, where they lie arranged

    __device__ __forceinline__ explicit Arranger(const Place &at) {
        const int warp = threadIdx.x / 32;
        eight = ARRANGERS > 1 ? warp % EIGHTS : warp;
        first = ARRANGERS > 1 ? warp / EIGHTS : 0;
        to = eight * 256 + at.quad * 16 + at.t * 4;
    }

    // Whether a turn of a group is this warp's.
    __device__ __forceinline__ bool has(int group, int turn) const {
        return group % ARRANGERS == first && eight + turn * WARPS < EIGHTS;
    }

    __device__ __forceinline__ uint4 load(const char *stage, const Place &at, int group,
                                          int turn) const {
        return at.vector(stage, (eight + turn * WARPS) * 8, group);
    }

    __device__ __forceinline__ void store(char *arranged, int group, int turn, uint4 v) const {
        char *place = arranged + to + group * 2 * TOKENS * 32 + turn * WARPS * 256;
        *(u32 *)place = v.x;
        *(u32 *)(place + 128) = v.y;
        *(u32 *)(place + TOKENS * 32) = v.z;
        *(u32 *)(place + TOKENS * 32 + 128) = v.w;
    }
};

__device__ __forceinline__ void arrange(const char *stage, const Place &at, char *arranged) {
    const Arranger arranger(at);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
#pragma unroll
        for (int turn = 0; turn < ARRANGE_TURNS; ++turn)
            if (arranger.has(group, turn))
                arranger.store(arranged, group, turn, arranger.load(stage, at, group, turn));
    show_to_products();
}
