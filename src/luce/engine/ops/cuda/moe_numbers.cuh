// What all kernels of a mixture share. x and what down multiplies are whole numbers of 16 bits by
// a scale, as two signed bytes: the largest is 127 * 256 + 127.

#define UNIT 256
#define MOST_NUMBER 32639.0f
#define LEAST_MOST 1e-30f
#define LOG2_E 1.44269504f

__device__ __forceinline__ u32 word_of(const uint4 &words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}

// NaN stays.
__device__ __forceinline__ float larger(float a, float b) { return a >= b || a != a ? a : b; }

// A number by a scale of which the largest is `most`.
__device__ __forceinline__ float inverse_of(float most) {
    return most > LEAST_MOST ? MOST_NUMBER * reciprocal(most) : 0.0f;
}
__device__ __forceinline__ float scale_of(float most) { return most * (1.0f / MOST_NUMBER); }

__device__ __forceinline__ int upper_byte(int number) { return (number + 128) >> 8; }

__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal(1.0f + exp2_of(x * -LOG2_E));
}

// A row's sum of the four threads that share it.
__device__ __forceinline__ float sum_of_row(float value) {
    value += of_lane_across(value, 1);
    return value + of_lane_across(value, 2);
}
