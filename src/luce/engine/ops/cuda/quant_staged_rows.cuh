// x in half precision, as the products of quant_split.cu want it; for each unit of 256 columns
//
//   numbers [half of its columns 2][eight 4][eight tokens TOKEN_TILES][lane 32], 16 bytes each:
//     lane 4 q + t has of token q among its eight the columns of an eight of group t of the half;
//   float [TOKENS]: what a token's sums are to be multiplied by;
//   sums of groups [TOKEN_TILES][group 8][token 8], each as two numbers that add up to it.
//
// Each token's 256 columns are scaled by a power of two so that the largest of them is just below
// 1024: then sums of 32 are finite, and only what is less than 2^-24 of it is rounded. What there
// is of tokens beyond the last is not written, and only meets sums that nobody wants.

#define UNIT 256
#define GROUPS 8
#define SPANS 2
#define TOKENS (TOKEN_TILES * 8)
#define X_TILE 512
#define BACK_AT (SPANS * 4 * TOKEN_TILES * X_TILE)
#define SUMS_AT (BACK_AT + TOKENS * 4)
#define X_UNIT (SUMS_AT + TOKENS * GROUPS * 4)

__device__ __forceinline__ u32 word_of(const uint4 &words, int index) {
    return index == 0 ? words.x : index == 1 ? words.y : index == 2 ? words.z : words.w;
}
