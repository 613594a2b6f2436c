// Stages of shared memory that quant_whole.cu multiplies from, and what fills them: four warps that
// do nothing else.

#define SPAN 128
#define GROUPS 4
#define SPANS_OF_BLOCK 2
#define TOKENS (TOKEN_TILES * 8)
#define ROWS (ROW_WARPS * ROW_TILES * 16)
#define WORKERS (ROW_WARPS * 32)
#define FEED_WARPS 4
#define FEEDERS (FEED_WARPS * 32)
#define THREADS (WORKERS + FEEDERS)
#define GIVES_REGISTERS (ROW_WARPS == 12 && BLOCKS == 1) // then each has 128 at first

// Of a stage, in bytes.
#define CODE_BYTES 64
#define HIGH_BYTES 16
#define X_LINE (SPAN * 2)
#define CODES_AT 0
#define HIGH_AT (CODE_PARTS * ROWS * CODE_BYTES)
#define SCALES_AT (HIGH_AT + HIGH_PARTS * ROWS * HIGH_BYTES)
#define BLOCKS_AT (SCALES_AT + ROWS * SCALE_BYTES)
#define X_AT (BLOCKS_AT + (BLOCK_BYTES ? ROWS * 4 : 0))
#define FULL_AT (X_AT + TOKENS * X_LINE)
#define FREE_AT (FULL_AT + 8)
#define STAGE_BYTES (FREE_AT + 8)
// After the ring: a flag.
#define FLAG_AT (STAGES * STAGE_BYTES)

#define PARTS (ROW_TILES * TOKEN_TILES)
#define HAS_TWO_SCALES (SCALE == SCALE_SIXTEEN)

struct Problem {
    const u16 *x;
    u16 *y;
    const u16 *residual, *bias;
    const char *codes, *high, *scales, *blocks;
    float4 *partials;
    int *arrived;
    int num_tokens, num_rows, num_spans, x_stride, y_stride, has_bias, has_residual;
};

// Where a byte of a row's codes lies: a warp reads one group of eight rows at once.
__device__ __forceinline__ int swizzled_code(int row, int byte) {
    return byte ^ row / 2 % 4 * 16;
}

// Copies BYTES of each row of a plane for every unit. A thread's rows are STEP bytes of a stage
// apart, where codes change places alike.
template <int BYTES> struct PlaneFeed {
    static const int CHUNK = BYTES < 16 ? BYTES : 16, CHUNKS = BYTES / CHUNK;
    static const int COUNT = ROWS * CHUNKS, EACH = (COUNT + FEEDERS - 1) / FEEDERS;
    static const int STEP = FEEDERS / CHUNKS * BYTES;
    const char *from[EACH]; // of the first span
    int place;

    __device__ __forceinline__ void start(const char *plane, i64 row_bytes, int first_row,
                                          int num_rows) {
        const int thread = threadIdx.x % FEEDERS;
        const int line = thread / CHUNKS, chunk = thread % CHUNKS * CHUNK;
        place = line * BYTES + (BYTES == CODE_BYTES ? swizzled_code(line, chunk) : chunk);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            int row = min(first_row + line + i * (FEEDERS / CHUNKS), num_rows - 1);
            from[i] = plane + row * row_bytes + chunk;
        }
    }

    __device__ __forceinline__ void copy(char *to, int span) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if ((i + 1) * FEEDERS <= COUNT || threadIdx.x % FEEDERS + i * FEEDERS < COUNT)
                copy_async<CHUNK>(to + place + i * STEP, from[i] + span * BYTES, CHUNK);
    }
};

// Copies d, and dmin, of the blocks of 256 columns.
struct BlockFeed {
    static const int EACH = (ROWS + FEEDERS - 1) / FEEDERS;
    i64 first[EACH];        // of the row's blocks
    const char *from[EACH]; // where it is

    __device__ __forceinline__ void start(const Problem &p, int first_row) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            int row = min(first_row + (int)threadIdx.x % FEEDERS + i * FEEDERS, p.num_rows - 1);
            first[i] = (i64)row * (p.num_spans / SPANS_OF_BLOCK);
            from[i] = p.blocks + first[i] * BLOCK_BYTES;
        }
    }

    __device__ __forceinline__ void copy(const Problem &p, char *to, int span) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int index = threadIdx.x % FEEDERS + i * FEEDERS;
            if (BLOCK_BYTES == 4) {
                if ((i + 1) * FEEDERS <= ROWS || index < ROWS)
                    copy_async<4>(to + index * 4, from[i] + span / SPANS_OF_BLOCK * 4, 4);
                continue;
            }
            // Four bytes are the least that can be copied: a block's neighbour comes along.
            const i64 block = (first[i] + span / SPANS_OF_BLOCK) & ~1ll;
            const int there = block + 1 < (i64)p.num_rows * (p.num_spans / SPANS_OF_BLOCK) ? 4 : 2;
            if ((i + 1) * FEEDERS <= ROWS || index < ROWS)
                copy_async<4>(to + index * 4, p.blocks + block * BLOCK_BYTES, there);
        }
    }
};

// Copies what a unit needs of the matrix.
struct MatrixFeed {
    int row_block, span;
    PlaneFeed<CODE_BYTES> codes[CODE_PARTS];
    PlaneFeed<HIGH_BYTES> high[HIGH_PARTS ? HIGH_PARTS : 1];
    PlaneFeed<SCALE_BYTES> scales;
    BlockFeed blocks;

    __device__ __forceinline__ MatrixFeed(const Problem &p, int unit)
        : row_block(unit / p.num_spans), span(unit % p.num_spans) {
        start(p);
    }

    __device__ __forceinline__ void start(const Problem &p) {
        const int first = row_block * ROWS, rows = p.num_rows;
        const i64 code_half = (i64)p.num_spans * CODE_BYTES;
        const i64 high_half = (i64)p.num_spans * HIGH_BYTES;
#pragma unroll
        for (int part = 0; part < CODE_PARTS; ++part)
            codes[part].start(p.codes + part * code_half, CODE_PARTS * code_half, first, rows);
#pragma unroll
        for (int part = 0; part < HIGH_PARTS; ++part)
            high[part].start(p.high + part * high_half, HIGH_PARTS * high_half, first, rows);
        scales.start(p.scales, (i64)p.num_spans * SCALE_BYTES, first, rows);
        if (BLOCK_BYTES)
            blocks.start(p, first);
    }

    __device__ __forceinline__ void copy(const Problem &p, char *stage) {
#pragma unroll
        for (int part = 0; part < CODE_PARTS; ++part)
            codes[part].copy(stage + CODES_AT + part * ROWS * CODE_BYTES, span);
#pragma unroll
        for (int part = 0; part < HIGH_PARTS; ++part)
            high[part].copy(stage + HIGH_AT + part * ROWS * HIGH_BYTES, span);
        scales.copy(stage + SCALES_AT, span);
        if (BLOCK_BYTES)
            blocks.copy(p, stage + BLOCKS_AT, span);
        if (++span == p.num_spans) {
            span = 0;
            ++row_block;
            start(p);
        }
    }
};
