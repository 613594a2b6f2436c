// x of a block of threads in shared memory, in half precision: its columns of all tokens.
//
// Each token's 256 columns of a unit are scaled by a power of two so that the largest of them is
// just below 1024: then sums of 32 are finite, and only what is less than 2^-24 of it is rounded.

#define TOKENS (TOKEN_TILES * 8)
#define X_LINE 256
#define AT_ONCE 8

struct Vectors {
    char *x;     // by spans of 128 columns, by tokens
    float *back; // what sums are to be multiplied by, by units, by tokens
    u32 *sums;   // of groups, by units and eights of tokens, each as two numbers that add up to it

    __device__ __forceinline__ Vectors(char *shared, int units)
        : x(shared), back((float *)(shared + units * SPANS * TOKENS * X_LINE)),
          sums((u32 *)(back + units * TOKENS)) {}
    __device__ __forceinline__ char *end(int units) const {
        return (char *)(sums + HAS_MINIMA * units * GROUPS * TOKENS);
    }

    // Where a group's piece of eight columns lies in a token's line: so that neither the threads
    // that write a unit nor those that read four groups of two tokens meet in a bank.
    __device__ __forceinline__ static int piece(int token, int group, int eight) {
        return ((group * 16 + (token & 1) * 64) ^ ((eight & 1) * 32 + (eight >> 1) * 64)) +
               (eight & 1) * 128;
    }

    __device__ __forceinline__ u32 *sums_of(int unit, int tile) const {
        return sums + (unit * TOKEN_TILES + tile) * (GROUPS * 8);
    }

    // A warp takes a token's unit at a time, each thread eight columns.
    __device__ __forceinline__ void fill(const Problem &p, int first_unit, int units) const {
        const int lane = threadIdx.x % 32, tasks = units * TOKENS;
        for (int first = threadIdx.x / 32; first < tasks; first += AT_ONCE * WARPS) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int task = min(first + i * WARPS, tasks - 1);
                const int token = min(task % TOKENS, p.num_tokens - 1);
                v[i] = *(const uint4 *)(p.x + (i64)token * p.x_stride +
                                        (first_unit + task / TOKENS) * UNIT + lane * 8);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int task = first + i * WARPS;
                if (task < tasks)
                    put(v[i], task / TOKENS, task % TOKENS, task % TOKENS < p.num_tokens);
            }
        }
    }

    __device__ __forceinline__ void put(const uint4 &v, int unit, int token, bool is_there) const {
        const int lane = threadIdx.x % 32, group = lane / 4;
        u32 most = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k)
            most = larger_of_each(most, word_of(v, k) & 0x7fff7fffu);
        most = most_of_warp(max(most >> 16, most & 0xffff));
        const int exponent = max((int)(most >> 7), 10);
        const float factor = is_there ? __int_as_float((263 - exponent) << 23) : 0.0f;
        u32 words[4];
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const u32 pair = word_of(v, k);
            const float low = bfloat16_to_float((u16)pair) * factor;
            const float high = __int_as_float(pair & 0xffff0000u) * factor;
            sum += low + high;
            words[k] = pack_half(low, high);
        }
        char *line = x + ((unit * SPANS + group / 4) * TOKENS + token) * X_LINE;
        *(uint4 *)(line + piece(token, group % 4, lane % 4)) =
            make_uint4(words[0], words[1], words[2], words[3]);
        if (lane == 0)
            back[unit * TOKENS + token] = __int_as_float((exponent - 9) << 23);
        if (HAS_MINIMA) {
            sum += of_lane_across(sum, 1);
            sum += of_lane_across(sum, 2);
            const float high = half_to_float(pack_half(sum, sum) & 0xffff);
            if (lane % 4 == 0)
                sums_of(unit, token / 8)[group * 8 + token % 8] = pack_half(high, sum - high);
        }
    }
};
