// What decode attention is given, and what its blocks of threads and lanes do of it: see
// `decode_attention.cu`.

#define THREADS (32 * WARPS)
#define LOWEST __int_as_float(0xff800000) // minus infinity

struct Problem {
    const u16 *qkv, *keys, *values;
    const int *tables;
    const uint4 *pieces;
    float *partials;
    float2 *sums;
    int *arrivals;
    u16 *out;
    int block_stride, slot_stride, head_stride, table_stride, token_stride, out_stride, max_chunks;
    int few; // units: so few leave memory idle
    const u16 *gates; // each query head's behind room for its query
    int gate_stride;  // 0: there are no gates
};

// A lane's part of a unit's keys or values: 16 bytes each time.
typedef u32 Stage[D / 4];
typedef float Totals[D / 16][4];

// A lane's place: of a product's rows and columns the quad-th, of its sums' indices the t-th pair.
// Of a piece's units every WARPS-th from the group-th on are its warp's: another group each turn,
// so that no warp always has the most.
struct Lane {
    int warp, own, quad, t, group;
    __device__ __forceinline__ Lane()
        : warp(threadIdx.x / 32), own(threadIdx.x % 32), quad(own / 4), t(own % 4), group(warp) {}
};

// What a block of threads does next; `units` of it are this warp's, and lane i has the block of the
// i-th of them.
struct Task {
    int lane, row, length, first, chunk, chunks, head, units, block;

    __device__ __forceinline__ void take(const uint4 &piece, int index) {
        lane = (int)(piece.x & 0xffff);
        row = (int)(piece.x >> 16);
        length = (int)piece.y;
        first = (int)(piece.z & 0xffff);
        units = (int)(piece.z >> 16);
        chunk = (int)(piece.w & 0xffff);
        chunks = (int)(piece.w >> 16);
        head = index % K;
    }

    __device__ __forceinline__ void look_up(const Problem &p, const Lane &at, int group) {
        units = (units - group + WARPS - 1) / WARPS;
        first += group;
        block = 0;
        if (at.own < units)
            block = p.tables[(i64)row * p.table_stride + first_token(at.own) / P];
    }

    __device__ __forceinline__ int first_token(int unit) const {
        return (first + unit * WARPS) * 16;
    }

    __device__ __forceinline__ bool is_old(int unit) const {
        return first_token(unit) + 16 < length;
    }

    // All lanes of the warp.
    __device__ __forceinline__ i64 place(const Problem &p, int unit) const {
        return (i64)of_lane(block, unit) * p.block_stride + head * p.head_stride +
               first_token(unit) % P * p.slot_stride;
    }
};
