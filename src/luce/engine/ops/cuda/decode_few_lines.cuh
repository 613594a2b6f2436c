// What `decode_few.cu` is given and shares, and heads' lines with their norm and rotation.

#define WORKERS (2 * BLOCKS)
#define SLICE (D / BLOCKS)

struct Few {
    const u16 *projected, *query_weight, *key_weight;
    const float *angles;
    u16 *keys, *values;
    const int *tables, *rows, *lengths;
    float4 *left;
    int *arrivals;
    u16 *out;
    int token_stride, block_stride, slot_stride, head_stride, table_stride;
};

struct Shared {
    u64 arrived[2]; // The first is for weights; what follows is aligned.
    // Of each lane: two words of two weights, the largest score, the weights' sum.
    float4 weights[WORKERS][32];
    uint4 queries[D / 32][32];            // as lanes multiply them
    uint4 key[D / 8];                     // the newest token's
    uint4 values[WORKERS][16][SLICE / 8]; // tokens' lines of four, each two another turned
};

// A part of a context: every `step`-th round of WORKERS units from `first` on, from the end.
struct Span {
    int length, units, head, part, first, step;
    const int *table;

    __device__ __forceinline__ int unit(int counted) const { return units - 1 - counted; }

    __device__ __forceinline__ i64 place(const Few &p, int block, int unit) const {
        return (i64)block * p.block_stride + head * p.head_stride + unit * 16 % P * p.slot_stride;
    }
};

__device__ __forceinline__ float low_of(u32 pair) { return bfloat16_to_float((u16)pair); }
__device__ __forceinline__ float high_of(u32 pair) { return __int_as_float(pair & 0xffff0000); }

// Of the 8 numbers that a lane of eight has the m-th time, in eights.
__device__ __forceinline__ int chunk_of(const Lane &at, int m) {
    return (m + at.own % 8 / 4 * 4) * 4 + at.own % 4;
}

// What lines are multiplied by and turned with, which is there before the kernel ahead is done.
struct Factors {
    uint4 weights[4] = {};
    float4 angles[R / 64][4]; // cosine and sine of two pairs

    __device__ __forceinline__ Factors(const Few &p, const u16 *weight, const Lane &at) {
        if (HAS_NORM)
#pragma unroll
            for (int m = 0; m < 4; ++m)
                weights[m] = *(const uint4 *)(weight + chunk_of(at, m) * 8);
        const float *turns = p.angles + (i64)blockIdx.y * R + at.own % 4 * 16;
#pragma unroll
        for (int i = 0; i < R / 16; ++i)
            angles[i / 4][i % 4] = *(const float4 *)(turns + i / 4 * 64 + i % 4 * 4);
    }
};

// Four lines of numbers, a head each, of which eight lanes have 32 each: 8 numbers from 8t on of
// every 32 of the head's first half, or of its second.
struct Lines {
    u32 words[4][4];

    __device__ __forceinline__ void load(const u16 *line, const Lane &at) {
#pragma unroll
        for (int m = 0; m < 4; ++m)
            load_once(words[m], line + chunk_of(at, m) * 8);
    }

    __device__ __forceinline__ void normalise(const Factors &by) {
        float sums[4] = {};
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float low = low_of(words[i / 4][i % 4]), high = high_of(words[i / 4][i % 4]);
            sums[i % 4] += low * low + high * high;
        }
        float sum = sums[0] + sums[1] + (sums[2] + sums[3]);
#pragma unroll
        for (int bits = 1; bits < 8; bits *= 2)
            sum += of_lane_across(sum, bits);
        const float scale = inverse_root(sum / D + __int_as_float(EPS_BITS));
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const u32 factors[4] = {by.weights[m].x, by.weights[m].y, by.weights[m].z,
                                    by.weights[m].w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
                // Rounded before the weight, as separate operations round.
                words[m][i] = multiply_bfloat16(
                    pack_bfloat16(low_of(words[m][i]) * scale, high_of(words[m][i]) * scale),
                    factors[i]);
        }
    }

    // Of the first half alone.
    __device__ __forceinline__ void rotate(const Factors &by, const Lane &at) {
#pragma unroll
        for (int m = 0; m < R / 64; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 angle = by.angles[m][i];
                const u32 left = words[m][i], right = words[m + R / 64][i];
                const float a = low_of(left), b = high_of(left);
                const float c = low_of(right), d = high_of(right);
                if (at.own % 8 < 4) {
                    words[m][i] =
                        pack_bfloat16(a * angle.x - c * angle.y, b * angle.z - d * angle.w);
                    words[m + R / 64][i] =
                        pack_bfloat16(c * angle.x + a * angle.y, d * angle.z + b * angle.w);
                }
            }
    }

    __device__ __forceinline__ void place(const Factors &by, const Lane &at) {
        if (HAS_NORM)
            normalise(by);
        rotate(by, at);
    }

    __device__ __forceinline__ uint4 vector(int m) const {
        return make_uint4(words[m][0], words[m][1], words[m][2], words[m][3]);
    }
};
