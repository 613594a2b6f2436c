"""Which steps with prompts are captured, and when one is worth replaying.

Kernel by kernel, such a step costs the host 30 to 60 us a kernel (`docs/lab/gpu.md`): more than
it takes the device for small models, and for short prompts of any. Padding costs the device. So
sizes between short prompts and full chunks are captured as far as a device is done with them
before the host would have launched their kernels; beyond, a step must nearly fill its shape.
"""

from __future__ import annotations

from collections.abc import Iterable

from luce.engine.device_inputs import StepShape
from luce.sizing.steps import SHORT_PROMPT, prompt_sizes

_FEW_CHUNKS, _MOST_CHUNKS = 8, 16
"""Where there are more prompts, they do not all get in: kernels start programs for each prompt as
if it were the whole chunk, and most of them leave at once. Those of recurrent layers are many."""
_FREE_LINES = 128
"""So many tokens are computed in about the time of one: weights are read, at whatever padding."""
_MOST_PADDING = 1.25
"""Tokens of a replay over those that were asked for, where neither is quick."""


def mixed_shapes(
    max_rows: int, chunk: int, quick_lines: int = 0, *, has_states: bool = False
) -> tuple[StepShape, ...]:
    """Shapes of captured steps with prompts, the smallest first.

    Args:
        max_rows: rows.
        chunk: most prompt tokens of a step.
        quick_lines: most tokens of a step that the device computes while the host launches it.
        has_states: the model has recurrent layers.
    """
    most_chunks = _FEW_CHUNKS if has_states else _MOST_CHUNKS
    sizes = prompt_sizes(max_rows, chunk)
    ends = (sizes[0][0], sizes[-1][0]) if sizes else ()
    shapes = []
    for tokens, lanes in sizes:
        chunks = _FEW_CHUNKS if tokens <= SHORT_PROMPT else most_chunks
        shape = _shape(max_rows, lanes, tokens, chunks)
        if tokens in ends or shape.lines <= quick_lines:
            shapes.append(shape)
    return tuple(shapes)


def fitting(
    shapes: Iterable[StepShape], wanted: StepShape, quick_lines: int = 0
) -> StepShape | None:
    """The smallest shape with room for a step, if it is quick or not much larger than the step."""
    held = [shape for shape in shapes if shape.holds(wanted)]
    if not held:
        return None
    best = min(held, key=lambda shape: shape.lines)
    most = max(_FREE_LINES, quick_lines, _MOST_PADDING * wanted.lines)
    return best if best.lines <= most else None


def _shape(max_rows: int, lanes: int, tokens: int, most_chunks: int) -> StepShape:
    chunks = min(max_rows, most_chunks)
    return StepShape(lanes, chunks, tokens, tokens, min(max_rows, lanes + chunks))
