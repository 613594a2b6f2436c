// What both kernels of a mixture for up to four tokens share: the choice.

#define LOGIT_WORDS (EXPERTS / 64)
#define KEYS (EXPERTS / 32)

// Orders as its logit does, the upper half of `bits`; of equals, that of the lower number is the
// larger one. None is 0.
__device__ __forceinline__ u32 key_of(u32 bits, int expert) {
    return (bits & 0x80000000 ? ~bits & 0xffff0000 : bits | 0x80000000) | (u32)(0xffff - expert);
}

__device__ __forceinline__ int expert_of(u32 key) { return 0xffff - (int)(key & 0xffff); }

__device__ __forceinline__ float logit_of(u32 key) {
    return __int_as_float((int)((key & 0x80000000 ? key & 0x7fff0000 : ~key & 0xffff0000)));
}

// A token's logits, some in each lane; every warp finds the likeliest one after the other.
struct Choice {
    u32 keys[KEYS];

    __device__ __forceinline__ Choice(const u16 *logits) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < LOGIT_WORDS; ++i) {
            const int at = i * 32 + lane;
            const u32 word = __ldcg((const u32 *)logits + at);
            keys[2 * i] = key_of(word << 16, 2 * at);
            keys[2 * i + 1] = key_of(word & 0xffff0000, 2 * at + 1);
        }
    }
    __device__ __forceinline__ u32 take() {
        u32 most = keys[0];
#pragma unroll
        for (int i = 1; i < KEYS; ++i)
            most = max(most, keys[i]);
        most = most_of_warp(most);
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            keys[i] = keys[i] == most ? 0 : keys[i];
        return most;
    }
    // Sum over those not taken, as shares of the largest.
    __device__ __forceinline__ float shares(float largest) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; ++i)
            if (keys[i])
                sum += exp2_of((logit_of(keys[i]) - largest) * LOG2_E);
#pragma unroll
        for (int bits = 16; bits > 0; bits /= 2)
            sum += of_lane_across(sum, bits);
        return sum;
    }
};
