"""Pieces the quantised kernels share: codes and scales from planes, to be inlined.

Byte words hold four codes of a group. `low` words are the columns 0, 4, 1, 5 of eight and `high`
words 2, 6, 3, 7; with a table of values 0, 2, 4, 6 and 1, 3, 5, 7, the order its lookup gives.
Layouts: `luce.loaders.quant_formats`.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from luce.loaders.quant_formats import IQ4_CODES, QuantFormat

_HIGH_NIBBLES = tl.constexpr(-0x0F0F0F10)
IQ4_TABLE = tl.constexpr(1)
E2M1_TABLE = tl.constexpr(2)

# Sixteen signed bytes as four words, `prmt` picks from two of them at a time: by the low three
# bits of a code from either half, then by its fourth bit one of the two.
_LOOKUP = """{{
.reg .b32 v, s, a, b, t0, t1, t2, t3;
mov.b32 t0, {0}; mov.b32 t1, {1}; mov.b32 t2, {2}; mov.b32 t3, {3};
and.b32 v, $2, 0x77777777;
shr.u32 s, $2, 1;
lop3.b32 s, s, 0x44444444, 0x32103210, 0xEA;
prmt.b32 a, t0, t1, v;
prmt.b32 b, t2, t3, v;
prmt.b32 $0, a, b, s;
shr.u32 v, v, 16;
shr.u32 s, s, 16;
prmt.b32 a, t0, t1, v;
prmt.b32 b, t2, t3, v;
prmt.b32 $1, a, b, s;
}}"""
IQ4_LOOKUP = tl.constexpr(_LOOKUP.format("0xBFAD9881", "0xF6EADDCF", "0x26190D01", "0x71594535"))
E2M1_LOOKUP = tl.constexpr(_LOOKUP.format("0x03020100", "0x0C080604", "0xFDFEFF00", "0xF4F8FAFC"))


@dataclass(frozen=True, slots=True)
class FormatFlags:
    """A format as the kernels' compile-time arguments."""

    codes: int
    high: int
    zero: int
    table: int
    is_signed: bool
    scale: str
    is_two_level: bool

    @classmethod
    def of(cls, form: QuantFormat) -> FormatFlags:
        """The arguments for `form`."""
        table = 0
        if form.table is not None:
            table = 1 if form.table == IQ4_CODES else 2
        return cls(
            codes=form.codes.value,
            high=0 if form.high is None else form.high.value,
            zero=form.zero,
            table=table,
            is_signed=form.is_signed,
            scale=form.scale.value,
            is_two_level=form.is_two_level,
        )


@triton.jit
def table_value(code, TABLE: tl.constexpr):
    """What a table holds for a code, in plain arithmetic for where there is no byte permute."""
    if TABLE == 2:
        size = code & 7
        mantissa = tl.where(size < 2, size, 2 | (size & 1))
        shift = tl.where(size < 2, 0, (size >> 1) - 1)
        value = mantissa << shift
        return tl.where(code >= 8, -value, value)
    size = tl.where(code >= 8, code - 8, 7 - code)
    # Distances of the two halves of the table from -10 and 1, written as one list each.
    up = tl.where(size == 1, 13, 1)
    up = tl.where(size == 2, 25, up)
    up = tl.where(size == 3, 38, up)
    up = tl.where(size == 4, 53, up)
    up = tl.where(size == 5, 69, up)
    up = tl.where(size == 6, 89, up)
    up = tl.where(size == 7, 113, up)
    down = tl.where(size == 1, -22, -10)
    down = tl.where(size == 2, -35, down)
    down = tl.where(size == 3, -49, down)
    down = tl.where(size == 4, -65, down)
    down = tl.where(size == 5, -83, down)
    down = tl.where(size == 6, -104, down)
    down = tl.where(size == 7, -127, down)
    return tl.where(code >= 8, up, down)


@triton.jit
def look_up(word, TABLE: tl.constexpr, ASM: tl.constexpr):
    """Eight nibbles → two words of four signed bytes, of nibbles 0..3 and 4..7."""
    if ASM:
        source: tl.constexpr = IQ4_LOOKUP if TABLE == 1 else E2M1_LOOKUP
        low, high = tl.inline_asm_elementwise(
            source, "=&r,=&r,r", [word], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
    else:
        low = tl.zeros_like(word)
        high = tl.zeros_like(word)
        for byte in tl.static_range(4):
            low |= (table_value((word >> (4 * byte)) & 15, TABLE) & 255) << (8 * byte)
            high |= (table_value((word >> (4 * byte + 16)) & 15, TABLE) & 255) << (8 * byte)
    return low, high


@triton.jit
def byte_words(
    word,
    word_high,
    bits_low,
    bits_high,
    w: tl.constexpr,
    CODES: tl.constexpr,
    HIGH: tl.constexpr,
    TABLE: tl.constexpr,
    ASM: tl.constexpr,
):
    """Word w of a group from its planes, as a low and a high byte word.

    `word` is of the main plane (with `word_high` of its second half row where it has one),
    `bits_low` and `bits_high` of the plane of high bits.
    """
    if TABLE != 0:
        low, high = look_up(word, TABLE, ASM)
        return low, high
    if CODES == 8:
        return word, word_high
    if CODES == 4:
        low = word & 0x0F0F0F0F
        high = (word >> 4) & 0x0F0F0F0F
    else:
        low = (word >> (2 * w)) & 0x03030303
        high = (word_high >> (2 * w)) & 0x03030303
    if HIGH == 1 and CODES == 4:
        low |= (bits_low << (4 - w)) & 0x10101010
        high |= (bits_low >> w) & 0x10101010
    if HIGH == 1 and CODES == 2:
        if w < 3:
            low |= (bits_low << (2 - w)) & 0x04040404
        else:
            low |= (bits_low >> 1) & 0x04040404
        high |= (bits_low >> (2 + w)) & 0x04040404
    if HIGH == 2:
        if w < 3:
            low |= (bits_low << (4 - 2 * w)) & 0x30303030
            high |= (bits_high << (4 - 2 * w)) & 0x30303030
        else:
            low |= (bits_low >> 2) & 0x30303030
            high |= (bits_high >> 2) & 0x30303030
    return low, high


@triton.jit
def half_bits(word):
    """The float16 in the low half of an int32, in float32."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_scales(
    scales_ptr,
    blocks_ptr,
    rows,
    groups,
    num_groups: tl.constexpr,
    SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """What is stored of the scales of rows x groups, for `decode_scales`.

    `rows` [BN, 1] and `groups` [1, GROUPS] are indices. Pointers must come without alignment:
    then a thread reads the scales of the groups whose words it holds, one by one.
    """
    # Not contiguous, but said to be: lanes shall lie along a row, as for the words. Nothing is
    # read wider for it, since the pointers are not known to be aligned.
    eighths = tl.max_contiguous(groups // 8, [1, GROUPS])
    if SCALE == "half" or SCALE == "half_offset" or SCALE == "power":
        scale = tl.load(scales_ptr + groups + rows * num_groups)
        return scale, scale, scale
    block = tl.load(blocks_ptr + eighths + rows * (num_groups // 8))
    if SCALE == "sixteen_six":
        row = rows * (num_groups + num_groups // 2)
        scale = tl.load(scales_ptr + groups + row)
        halves = tl.max_contiguous(groups // 2, [1, GROUPS])
        return scale, block, tl.load(scales_ptr + (num_groups + halves) + row)
    scale = tl.load(scales_ptr + groups + rows * num_groups)
    return scale, block, scale


@triton.jit
def decode_scales(scale, block, top, groups, SCALE: tl.constexpr, MINIMA: tl.constexpr = False):
    """S of both halves of groups, then B of both, in float32; with MINIMA, B of those is negated.

    Minima are subtracted: to negate them here would take an instruction each.
    """
    nothing = tl.zeros(scale.shape, dtype=tl.float32)
    if SCALE == "half":
        first = scale.to(tl.float32)
        return first, first, nothing, nothing
    if SCALE == "half_offset":
        first = half_bits(scale)
        offset = half_bits(scale >> 16)
        return first, first, offset, offset
    if SCALE == "power":
        exponent = scale.to(tl.int32)
        bits = tl.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23)
        first = bits.to(tl.float32, bitcast=True)
        return first, first, nothing, nothing
    bytes_ = scale.to(tl.int32)
    if SCALE == "byte":
        first = block.to(tl.float32) * bytes_.to(tl.float32)
        return first, first, nothing, nothing
    if SCALE == "byte_offset":
        first = half_bits(block) * (bytes_ & 255).to(tl.float32)
        minimum = half_bits(block >> 16)
        if not MINIMA:
            minimum = -minimum
        offset = minimum * ((bytes_ >> 8) & 255).to(tl.float32)
        return first, first, offset, offset
    if SCALE == "sixteen":
        first = block.to(tl.float32) * ((bytes_ << 24) >> 24).to(tl.float32)
        second = block.to(tl.float32) * (bytes_ >> 8).to(tl.float32)
        return first, second, nothing, nothing
    if SCALE == "sixteen_offset":
        first = half_bits(block) * (bytes_ & 15).to(tl.float32)
        second = half_bits(block) * ((bytes_ >> 8) & 15).to(tl.float32)
        minimum = half_bits(block >> 16)
        if not MINIMA:
            minimum = -minimum
        offset = minimum * ((bytes_ >> 4) & 15).to(tl.float32)
        return first, second, offset, minimum * ((bytes_ >> 12) & 15).to(tl.float32)
    tops = top.to(tl.int32) >> ((groups & 1) * 4)
    first_code = ((bytes_ & 15) | ((tops & 3) << 4)) - 32
    second_code = ((bytes_ >> 4) | ((tops & 12) << 2)) - 32
    first = block.to(tl.float32) * first_code.to(tl.float32)
    return first, block.to(tl.float32) * second_code.to(tl.float32), nothing, nothing


@triton.jit
def scales_from(scales_ptr, blocks_ptr, row, num_groups: tl.constexpr, SCALE: tl.constexpr):
    """Where the scales of the rows from `row` on are, as `load_scales` wants them."""
    if SCALE == "sixteen_six":
        scales_ptr += row * (num_groups + num_groups // 2)
    else:
        scales_ptr += row * num_groups
    return scales_ptr, blocks_ptr + row * (num_groups // 8)


@triton.jit
def codes_from(
    codes_ptr, two_ptr, high_ptr, row, num_groups: tl.constexpr, CODES: tl.constexpr,
    HIGH: tl.constexpr,
):  # fmt: skip
    """Where the codes of the rows from `row` on are, as `load_codes` wants them.

    Rows beyond it are then told apart by constants, which cost nothing in addresses.
    """
    if HIGH != 0:
        high_ptr += row * (HIGH * num_groups)
    return codes_ptr + row * (CODES * num_groups), two_ptr + row * (2 * num_groups), high_ptr


@triton.jit
def load_words(
    codes_ptr,
    rows,
    first_group,
    row_words,
    num_groups: tl.constexpr,
    BN: tl.constexpr,
    BG: tl.constexpr,
):
    """The four words of each group: [BN, BG] each, read 16 bytes at a time."""
    columns = first_group * 4 + tl.arange(0, BG * 4)
    at = codes_ptr + columns[None, :] + rows[:, None] * row_words
    if num_groups % BG == 0:
        words = tl.load(at)
    else:
        words = tl.load(at, mask=columns[None, :] < num_groups * 4, other=0)
    even, odd = tl.split(tl.reshape(words, (BN, BG, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def load_codes(
    codes_ptr, two_ptr, high_ptr, rows, groups, first_group,
    num_groups: tl.constexpr, BN: tl.constexpr, BG: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """What is stored of the codes of a tile of groups, for `decode_codes`."""
    group_words: tl.constexpr = 4 * num_groups
    at = rows[:, None] * num_groups + groups[None, :]
    two_at = rows[:, None] * (2 * num_groups) + groups[None, :]
    if CODES == 4:
        w0, w1, w2, w3 = load_words(codes_ptr, rows, first_group, group_words, num_groups, BN, BG)
        v0, v1, v2, v3 = w0, w1, w2, w3
    elif CODES == 8:
        row_words: tl.constexpr = 2 * group_words
        w0, w1, w2, w3 = load_words(codes_ptr, rows, first_group, row_words, num_groups, BN, BG)
        v0, v1, v2, v3 = load_words(
            codes_ptr + group_words, rows, first_group, row_words, num_groups, BN, BG
        )
    else:
        w0 = tl.load(two_ptr + two_at)
        v0 = tl.load(two_ptr + two_at + num_groups)
        w1, w2, w3 = w0, w0, w0
        v1, v2, v3 = v0, v0, v0
    bits_low = w0
    bits_high = w0
    if HIGH == 1:
        bits_low = tl.load(high_ptr + at)
    if HIGH == 2:
        bits_low = tl.load(high_ptr + two_at)
        bits_high = tl.load(high_ptr + two_at + num_groups)
    return w0, w1, w2, w3, v0, v1, v2, v3, bits_low, bits_high


@triton.jit
def decode_codes(
    stored, CODES: tl.constexpr, HIGH: tl.constexpr, TABLE: tl.constexpr, ASM: tl.constexpr,
    SHIFTED: tl.constexpr = False,
):  # fmt: skip
    """The byte words of what `load_codes` read: the four low ones, then the four high ones.

    SHIFTED codes of four bits are left where they are in the high ones: times 16.
    """
    w0, w1, w2, w3, v0, v1, v2, v3, bits_low, bits_high = stored
    l0, h0 = byte_words(w0, v0, bits_low, bits_high, 0, CODES, HIGH, TABLE, ASM)
    l1, h1 = byte_words(w1, v1, bits_low, bits_high, 1, CODES, HIGH, TABLE, ASM)
    l2, h2 = byte_words(w2, v2, bits_low, bits_high, 2, CODES, HIGH, TABLE, ASM)
    l3, h3 = byte_words(w3, v3, bits_low, bits_high, 3, CODES, HIGH, TABLE, ASM)
    if SHIFTED:
        h0, h1 = w0 & _HIGH_NIBBLES, w1 & _HIGH_NIBBLES
        h2, h3 = w2 & _HIGH_NIBBLES, w3 & _HIGH_NIBBLES
    return l0, l1, l2, l3, h0, h1, h2, h3
