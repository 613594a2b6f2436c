"""Which steps with prompts are captured, and when one is worth replaying.

Kernel by kernel, such a step costs the host 30 to 60 us a kernel (`docs/lab/gpu.md`): more than
it takes the device for small models, and for short prompts of any. Padding costs the device, so
there are two kinds: full chunks, and short prompts, where weights are read and little else.
"""

from __future__ import annotations

from collections.abc import Iterable

from luce.engine.device_inputs import StepShape

_SHORT_TOKENS = 64
_SHORT_LANES = (16, 64)
_MOST_TOKENS = 4096
"""A longer chunk takes any device longer than its launches take the host."""
_FEW_CHUNKS, _MOST_CHUNKS = 8, 16
"""Where there are more prompts, they do not all get in: kernels start programs for each prompt as
if it were the whole chunk, and most of them leave at once. Those of recurrent layers are many."""
_FREE_LINES = 128
"""So many tokens are computed in about the time of one: weights are read, at whatever padding."""
_MOST_PADDING = 1.25
"""Tokens of a replay over those that were asked for, beyond that."""


def mixed_shapes(max_rows: int, chunk: int, *, has_states: bool = False) -> tuple[StepShape, ...]:
    """Shapes of captured steps with prompts, the smallest first.

    Prompts alone have shapes of their own: lanes of padding take attention as long as 2 % of a
    chunk, and 64 tokens are few enough for kernels that take no more.

    Args:
        max_rows: rows.
        chunk: most prompt tokens of a step.
        has_states: the model has recurrent layers.
    """
    most_chunks = _FEW_CHUNKS if has_states else _MOST_CHUNKS
    short = min(chunk, _SHORT_TOKENS)
    lanes = sorted({0, *(min(each, max_rows) for each in (*_SHORT_LANES, max_rows))})
    shapes = [_shape(max_rows, each, short, _FEW_CHUNKS) for each in lanes]
    if short < chunk <= _MOST_TOKENS:
        shapes += [_shape(max_rows, each, chunk, most_chunks) for each in sorted({0, *lanes[-2:]})]
    return tuple(shapes)


def fitting(shapes: Iterable[StepShape], wanted: StepShape) -> StepShape | None:
    """The smallest shape with room for a step, if it is not much larger than the step."""
    held = [shape for shape in shapes if shape.holds(wanted)]
    if not held:
        return None
    best = min(held, key=lambda shape: shape.lines)
    most = max(_FREE_LINES, _MOST_PADDING * wanted.lines)
    return best if best.lines <= most else None


def _shape(max_rows: int, lanes: int, tokens: int, most_chunks: int) -> StepShape:
    chunks = min(max_rows, most_chunks)
    return StepShape(lanes, chunks, tokens, tokens, min(max_rows, lanes + chunks))
