// Groups of 32 columns: of rows of x as words of 16-bit integers, and of weights, in shared memory.

__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal_of(1.0f + exp2_of(x * -1.44269504f));
}

// A group of a row of x. The row has a quarter of each group's words after the other, then pairs of
// a scale and the sum of the integers.
struct Inputs {
    int words[16];
    float scale, sum;

    __device__ __forceinline__ Inputs(const char *row, int groups, int group) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const uint4 four = *(const uint4 *)(row + (w * groups + group) * 16);
            words[4 * w] = (int)four.x;
            words[4 * w + 1] = (int)four.y;
            words[4 * w + 2] = (int)four.z;
            words[4 * w + 3] = (int)four.w;
        }
        const float2 both = *(const float2 *)(row + 64 * groups + group * 8);
        scale = both.x;
        sum = both.y;
    }
};

// A group of a row in Q4_K.
struct Group {
    u32 codes[4];
    float step, least;

    __device__ __forceinline__ void load(const char *codes_at, const char *scale_at,
                                         const char *block_at) {
        const uint4 words = *(const uint4 *)codes_at;
        const u32 scale = *(const u16 *)scale_at, block = *(const u32 *)block_at;
        codes[0] = words.x;
        codes[1] = words.y;
        codes[2] = words.z;
        codes[3] = words.w;
        step = half_to_float(block) * (float)(scale & 0xff);
        least = half_to_float(block >> 16) * (float)(scale >> 8);
    }
    // sum + the product of both.
    __device__ __forceinline__ float times(const Inputs &x, float sum) const {
        int total = 0, shifted = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            // Upper nibbles stay where they are: 16 times as large.
            const u32 low = codes[w] & 0x0f0f0f0f, high = codes[w] & 0xf0f0f0f0;
            total = dot_low(x.words[4 * w], low, total);
            total = dot_high(x.words[4 * w + 1], low, total);
            shifted = dot_low(x.words[4 * w + 2], high, shifted);
            shifted = dot_high(x.words[4 * w + 3], high, shifted);
        }
        const float value = step * (float)(total + (shifted >> 4));
        return fmaf(fmaf(-least, x.sum, value), x.scale, sum);
    }
};

// A run of eight columns of a group as integers of its largest one, which `inverse` makes 32767.
__device__ __forceinline__ uint4 words_of(const float *columns, float inverse, int &total) {
    u32 words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const int low = (int)rintf(columns[w] * inverse);
        const int high = (int)rintf(columns[w + 4] * inverse);
        words[w] = (u32)(low & 0xffff) | (u32)high << 16;
        total += low + high;
    }
    return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ float inverse_of(float largest) {
    return largest > 0.0f ? 32767.0f / largest : 0.0f;
}
__device__ __forceinline__ float scale_of(float largest) { return largest * (1.0f / 32767.0f); }
