/* Products of rounded activations with a matrix in tiles.
 *
 * y = sum over groups of (weight scale * activation scale) * (integer dot) + offset * weighted
 * sum, groups in order, in float32: the same operations for a row whatever rows stand beside it.
 */

#define MOST_ROWS 8
#define BLOCK_ROWS 64 /* rows of a chunk, where there are many: those that stay in a core's own cache */
#define PREFETCH_BYTES 2048
#define INLINE static inline __attribute__((always_inline))

/* The eight quads of a group, a byte a code. */
INLINE void load_quads(vb *quads, const uint8_t *codes, vb table, int format) {
    for (int index = 0; index < 8; index++) {
        if (format & LUCE_BYTES) {
            quads[index] = load_b(codes + 64 * index);
            continue;
        }
        if (index % 2 == 0) {
            vb pair = load_b(codes + 32 * index);
            quads[index] = low_nibbles(pair);
            quads[index + 1] = high_nibbles(pair);
        }
        if (format & LUCE_TABLE) quads[index] = look_up(table, quads[index]);
    }
}

INLINE vi dot(vi sum, vb codes, const int8_t *activations, int format) {
    vi quad = quad_of(activations);
    return format & (LUCE_BYTES | LUCE_TABLE) ? dot_bytes(sum, codes, quad)
                                              : dot_small(sum, codes, quad);
}

/* Quads first .. first + count - 1 of a group, for one row. */
INLINE vi dot_quads(const vb *quads, const int8_t *codes, int32_t sum, int count, int32_t zero,
                    int format) {
    vi high = all_i(0), low = all_i(0);
    if (!(format & LUCE_OFFSET) || format & LUCE_BYTES) low = all_i(-zero * sum);
    for (int quad = 0; quad < count; quad++) {
        high = dot(high, quads[quad], codes + 4 * quad, format);
        low = dot(low, quads[quad], codes + LUCE_GROUP + 4 * quad, format);
    }
    return (high << 7) + low;
}

/* y of LANES of a tile's rows for `rows` rows of activations: out [rows, 16]. */
INLINE void tile_rows(const luce_matrix *matrix, const uint8_t *tile, const luce_rows *x,
                      int32_t row, float *out, int rows, int lane, int format) {
    int32_t groups = matrix->columns / LUCE_GROUP, columns = x->columns;
    int32_t zero = matrix->zero - (format & (LUCE_BYTES | LUCE_TABLE) ? BYTE_BIAS : 0);
    const int halves = format & LUCE_HALVES ? 2 : 1, quads_each = 8 / halves;
    const int code_bytes = luce_code_bytes(format);
    const int group_bytes = code_bytes + 32 * halves * (format & LUCE_OFFSET ? 2 : 1);
    const int8_t *first_codes = x->codes + 2 * (int64_t)row * columns;
    const luce_group *first_group = x->groups + (int64_t)row * groups;
    vb table = format & LUCE_TABLE ? table_of(matrix->table) : (vb){0};
    vf y[MOST_ROWS];
    for (int each = 0; each < rows; each++) y[each] = all_f(0);
    for (int32_t group = 0; group < groups; group++) {
        vb quads[8];
        for (int ahead = 0; ahead < group_bytes; ahead += 64) {
            __builtin_prefetch(tile + PREFETCH_BYTES + ahead);
        }
        load_quads(quads, tile + 4 * lane, table, format);
        const uint16_t *scales = (const uint16_t *)(tile + code_bytes) + lane;
        tile += group_bytes;
        for (int half = 0; half < halves; half++) {
            vf scale = load_halves(scales + LUCE_TILE * half), offset = all_f(0);
            if (format & LUCE_OFFSET) offset = load_halves(scales + LUCE_TILE * (halves + half));
            for (int each = 0; each < rows; each++) {
                const luce_group *about = first_group + (int64_t)each * groups + group;
                const int8_t *mine = first_codes + 2 * ((int64_t)each * columns + LUCE_GROUP * group);
                int32_t sum = halves == 2 ? about->sum_half[half] : about->sum;
                vi dots = dot_quads(quads + quads_each * half, mine + 16 * half, sum, quads_each,
                                    zero, format);
                y[each] = fma_f(scale * about->scale, to_float(dots), y[each]);
                if (format & LUCE_OFFSET) {
                    float weighted = halves == 2 ? about->weighted_half[half] : about->weighted;
                    y[each] = fma_f(offset, all_f(weighted), y[each]);
                }
            }
        }
    }
    for (int each = 0; each < rows; each++) store_f(out + LUCE_TILE * each + lane, y[each]);
}

#define FOR_FORMAT(name, format)                                                               \
    static void name(const luce_matrix *matrix, const uint8_t *tile, const luce_rows *x,        \
                     int32_t row, int rows, float *out) {                                      \
        for (int lane = 0; lane < LUCE_TILE; lane += LANES) {                                   \
            switch (rows) {                                                                     \
            case 1: tile_rows(matrix, tile, x, row, out, 1, lane, format); break;                       \
            case 2: tile_rows(matrix, tile, x, row, out, 2, lane, format); break;                       \
            case 3: tile_rows(matrix, tile, x, row, out, 3, lane, format); break;                       \
            case 4: tile_rows(matrix, tile, x, row, out, 4, lane, format); break;                       \
            case 8: tile_rows(matrix, tile, x, row, out, 8, lane, format); break;                       \
            default: break;                                                                     \
            }                                                                                   \
        }                                                                                       \
    }

FOR_FORMAT(nibbles, 0)
FOR_FORMAT(nibbles_offset, LUCE_OFFSET)
FOR_FORMAT(nibbles_table, LUCE_TABLE)
FOR_FORMAT(nibbles_halves, LUCE_HALVES)
FOR_FORMAT(nibbles_halves_offset, LUCE_HALVES | LUCE_OFFSET)
FOR_FORMAT(bytes, LUCE_BYTES)
FOR_FORMAT(bytes_offset, LUCE_BYTES | LUCE_OFFSET)
FOR_FORMAT(bytes_halves, LUCE_BYTES | LUCE_HALVES)

/* out [rows, 16] of up to MOST_ROWS rows. */
static void tile_product(const luce_matrix *matrix, int32_t index, const luce_rows *x,
                         int32_t row, int32_t rows, float *out) {
    const uint8_t *tile = matrix->data + index * matrix->tile_bytes;
    for (int32_t first = 0; first < rows;) {
        int32_t left = rows - first, count = left >= 8 ? 8 : left > 4 ? 4 : left;
        float *to = out + LUCE_TILE * first;
        switch (matrix->format) {
        case 0: nibbles(matrix, tile, x, row + first, count, to); break;
        case LUCE_OFFSET: nibbles_offset(matrix, tile, x, row + first, count, to); break;
        case LUCE_TABLE: nibbles_table(matrix, tile, x, row + first, count, to); break;
        case LUCE_HALVES: nibbles_halves(matrix, tile, x, row + first, count, to); break;
        case LUCE_HALVES | LUCE_OFFSET:
            nibbles_halves_offset(matrix, tile, x, row + first, count, to);
            break;
        case LUCE_BYTES: bytes(matrix, tile, x, row + first, count, to); break;
        case LUCE_BYTES | LUCE_OFFSET: bytes_offset(matrix, tile, x, row + first, count, to); break;
        default: bytes_halves(matrix, tile, x, row + first, count, to); break;
        }
        first += count;
    }
    if (matrix->row_factors == NULL) return;
    for (int32_t each = 0; each < rows; each++) {
        for (int lane = 0; lane < LUCE_TILE; lane += LANES) {
            float *at = out + LUCE_TILE * each + lane;
            store_f(at, load_f(at) * load_f(matrix->row_factors + LUCE_TILE * index + lane));
        }
    }
}

/* Of many rows a block is multiplied with many tiles before the next is: it is several times as
 * large as a tile.
 */
static int32_t row_blocks(int32_t tokens) {
    return tokens < 2 * BLOCK_ROWS ? 1 : (tokens + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

/* Tiles of a chunk: enough to be worth taking, few enough that all threads have some. */
static int32_t tiles_in_chunk(const luce_op *op, int32_t tokens, int32_t threads, int32_t tiles) {
    int32_t blocks = row_blocks(tokens);
    if (blocks > 1) {
        int32_t parts = (32 * threads + blocks - 1) / blocks;
        return tiles > parts ? (tiles + parts - 1) / parts : 1;
    }
    int64_t tile_bytes = op->linear->parts[0].tile_bytes;
    int32_t worth = (int32_t)(1 + (tokens < 16 ? 98304 : 4096) / tile_bytes);
    int32_t share = tiles / (4 * threads);
    int32_t each = worth < share ? worth : share;
    return each > 1 ? each : 1;
}

static int32_t all_tiles(const luce_op *op) {
    const luce_linear *linear = op->linear;
    /* Gate and up are computed together, 32 columns at a time. */
    if (op->kind == LUCE_GATED) return (linear->parts[0].tiles + 1) / 2;
    int32_t tiles = 0;
    for (int32_t part = 0; part < linear->num_parts; part++) tiles += linear->parts[part].tiles;
    return tiles;
}

static int32_t product_chunks(const luce_op *op, int32_t tokens, int32_t threads) {
    int32_t tiles = all_tiles(op), each = tiles_in_chunk(op, tokens, threads, tiles);
    return row_blocks(tokens) * ((tiles + each - 1) / each);
}

/* Rows and tiles of a chunk: from the first ones to before the second ones. */
typedef struct {
    int32_t rows[2], tiles[2];
} product_part;

static product_part part_of(const luce_op *op, int32_t tokens, int32_t chunk, int32_t chunks) {
    int32_t blocks = row_blocks(tokens), parts = chunks / blocks, tiles = all_tiles(op);
    int32_t row = chunk / parts * BLOCK_ROWS, stop = row + BLOCK_ROWS;
    int64_t part = chunk % parts;
    return (product_part){{row, blocks == 1 || stop > tokens ? tokens : stop},
                          {(int32_t)(tiles * part / parts), (int32_t)(tiles * (part + 1) / parts)}};
}

static void finish_tile(const luce_op *op, const float *values, int32_t row, int32_t rows,
                        int32_t column, int32_t count) {
    const float *bias = op->linear->bias;
    for (int32_t each = 0; each < rows; each++) {
        int64_t at = (int64_t)(row + each) * op->width + column;
        for (int32_t lane = 0; lane < count; lane++) {
            float value = values[LUCE_TILE * each + lane];
            if (bias != NULL) value += bias[column + lane];
            if (op->in != NULL) value += op->in[at + lane];
            op->out[at + lane] = value;
        }
    }
}

static void product(const luce_op *op, int32_t tokens, int32_t chunk, int32_t chunks) {
    const luce_linear *linear = op->linear;
    product_part mine = part_of(op, tokens, chunk, chunks);
    int32_t first = mine.tiles[0], stop = mine.tiles[1];
    float values[MOST_ROWS * LUCE_TILE];
    int32_t column = 0, before = 0;
    for (int32_t part = 0; part < linear->num_parts; part++) {
        const luce_matrix *matrix = &linear->parts[part];
        int32_t begin = first > before ? first - before : 0;
        int32_t end = stop - before < matrix->tiles ? stop - before : matrix->tiles;
        for (int32_t tile = begin; tile < end; tile++) {
            int32_t left = matrix->rows - LUCE_TILE * tile;
            int32_t count = left < LUCE_TILE ? left : LUCE_TILE;
            for (int32_t row = mine.rows[0]; row < mine.rows[1]; row += MOST_ROWS) {
                int32_t rest = mine.rows[1] - row, rows = rest < MOST_ROWS ? rest : MOST_ROWS;
                tile_product(matrix, tile, op->in_rows, row, rows, values);
                finish_tile(op, values, row, rows, column + LUCE_TILE * tile, count);
            }
        }
        column += matrix->rows;
        before += matrix->tiles;
    }
}

static void quantise_group(const float *values, int8_t *codes, luce_group *group);

/* 32 columns of silu(gate) * up from a tile on, for up to MOST_ROWS rows: rounded to group `pair`
 * of rows `to` and on of out_rows; to those of `out`, where there is one, as well. */
INLINE void gated_pair(const luce_op *op, const luce_rows *x, int32_t row, int32_t rows,
                       int32_t tile, int32_t pair, int64_t to) {
    const luce_matrix *gate = &op->linear->parts[0], *up = &op->linear->parts[1];
    float gates[2][MOST_ROWS * LUCE_TILE], ups[2][MOST_ROWS * LUCE_TILE], values[LUCE_GROUP];
    for (int32_t side = 0; side < 2; side++) {
        tile_product(gate, tile + side, x, row, rows, gates[side]);
        tile_product(up, tile + side, x, row, rows, ups[side]);
    }
    int64_t groups = op->out_rows->columns / LUCE_GROUP;
    for (int32_t each = 0; each < rows; each++) {
        for (int lane = 0; lane < LUCE_GROUP; lane += LANES) {
            int at = LUCE_TILE * each + lane % LUCE_TILE;
            vf g = load_f(gates[lane / LUCE_TILE] + at), u = load_f(ups[lane / LUCE_TILE] + at);
            store_f(values + lane, silu_f(g) * u);
        }
        int64_t group = (to + each) * groups + pair;
        quantise_group(values, op->out_rows->codes + 2 * LUCE_GROUP * group,
                       op->out_rows->groups + group);
        if (op->out != NULL) memcpy(op->out + LUCE_GROUP * group, values, sizeof values);
    }
}

static void gated(const luce_op *op, int32_t tokens, int32_t chunk, int32_t chunks) {
    product_part mine = part_of(op, tokens, chunk, chunks);
    for (int32_t pair = mine.tiles[0]; pair < mine.tiles[1]; pair++) {
        for (int32_t row = mine.rows[0]; row < mine.rows[1]; row += MOST_ROWS) {
            int32_t rest = mine.rows[1] - row, rows = rest < MOST_ROWS ? rest : MOST_ROWS;
            gated_pair(op, op->in_rows, row, rows, 2 * pair, pair, row);
        }
    }
}
