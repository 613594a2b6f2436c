// Weights of four bits times words of activations, for products of up to four rows.
//
// Activations are 16-bit integers by groups; scales of a group of weights are one byte for it and
// one for its minimum, times a pair of half precision for eight groups.

// N values of each lane to sums over all lanes: of value lane / (32 / N).
template <int N> __device__ __forceinline__ float sum_of_lanes(float (&values)[N]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int count = N / 2; count > 0; count /= 2) {
        const int bit = 16 * count / (N / 2);
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float kept = upper ? values[i + count] : values[i];
            const float given = upper ? values[i] : values[i + count];
            values[i] = kept + of_lane_across(given, bit);
        }
    }
#pragma unroll
    for (int bit = 16 / N; bit > 0; bit /= 2)
        values[0] += of_lane_across(values[0], bit);
    return values[0];
}

// Where what is stored of a column of a row is; rows have WIDTH columns.
template <int WIDTH> struct Place {
    const char *codes;
    const u16 *scales;
    const u32 *blocks;

    __device__ __forceinline__ Place(const char *codes, const u16 *scales, const u32 *blocks,
                                     u32 row, int column)
        : codes(codes + ((i64)row * (WIDTH / 8) + column / 8) * 4),
          scales(scales + ((i64)row * (WIDTH / 32) + column / 32)),
          blocks(blocks + ((i64)row * (WIDTH / 256) + column / 256)) {}
};

// What is stored of a run of columns of a row within one group: N words of eight.
template <int N> struct Run {
    u32 codes[N], scale, block;

    // So many rows, and whole 256 columns, from there on.
    template <int WIDTH>
    __device__ __forceinline__ void load(const Place<WIDTH> &place, int rows, int columns) {
        read_once(codes, place.codes + (rows * (WIDTH / 8) + columns / 8) * 4);
        scale = read_half(place.scales + rows * (WIDTH / 32) + columns / 32);
        block = read_word(place.blocks + rows * (WIDTH / 256) + columns / 256);
    }

    // What a code and what a group's minimum stand for.
    __device__ __forceinline__ float step() const {
        return half_to_float(block) * (float)(scale & 0xff);
    }
    __device__ __forceinline__ float least() const {
        return half_to_float(block >> 16) * (float)(scale >> 8);
    }
    // Products of a word's codes and four words of x: to `total`, and those of upper nibbles, 16
    // times as large, to `shifted`.
    __device__ __forceinline__ void add(int w, int x0, int x1, int x2, int x3, int &total,
                                        int &shifted) const {
        const u32 low = codes[w] & 0x0f0f0f0f, high = codes[w] & 0xf0f0f0f0;
        total = dot_low(x0, low, total);
        total = dot_high(x1, low, total);
        shifted = dot_low(x2, high, shifted);
        shifted = dot_high(x3, high, shifted);
    }
    // Times words of x that have one scale and such a sum.
    __device__ __forceinline__ float times(const int (&x)[4 * N], float sum) const {
        int total = 0, shifted = 0;
#pragma unroll
        for (int w = 0; w < N; ++w)
            add(w, x[4 * w], x[4 * w + 1], x[4 * w + 2], x[4 * w + 3], total, shifted);
        return step() * (float)(total + (shifted >> 4)) - least() * sum;
    }
};
