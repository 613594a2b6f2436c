// x of a stage for `multiply_together`: by group and half of its products, by eights of tokens.
// Each of the feeding warps has a group of all tokens. A span is in registers before its stage is
// free.
#define EIGHTS (TOKENS / 8)

struct VectorFeed {
    int span;
    const u16 *from;   // of the first span
    int token[EIGHTS]; // where it begins
    uint4 x[EIGHTS];

    __device__ __forceinline__ VectorFeed(const Problem &p, int first_span) : span(first_span) {
        const int lane = threadIdx.x % 32, group = threadIdx.x / 32 % FEED_WARPS;
        from = p.x + group * 32 + lane % 4 * (HAS_TWO_SCALES ? 4 : 8);
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i)
            token[i] = min(i * 8 + lane / 4, p.num_tokens - 1) * p.x_stride;
    }

    // What meets `Codes`, in their order.
    __device__ __forceinline__ void load(const Problem &p) {
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) {
            const u16 *at = from + token[i] + span * SPAN;
            if (HAS_TWO_SCALES) {
                const uint2 first = *(const uint2 *)at, second = *(const uint2 *)(at + 16);
                x[i] = make_uint4(first.x, first.y, second.x, second.y);
            } else
                x[i] = *(const uint4 *)at;
        }
        span = span + 1 == p.num_spans ? 0 : span + 1;
    }

    __device__ __forceinline__ void store(char *stage) const {
        char *to = stage + X_AT + threadIdx.x / 32 % FEED_WARPS * 2 * TOKENS * 32;
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i)
            store_eight<TOKENS * 32>(to + i * 256, x[i]);
        show_to_products();
    }
};
