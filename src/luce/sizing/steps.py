"""Memory of steps: intermediate tensors, and on a GPU what captured steps hold."""

from __future__ import annotations

from luce.loaders.hparams import HParams

_MIB = 1 << 20
# Allocator, thread buffers and what PyTorch itself takes on first use.
_FIXED_SCRATCH_BYTES = 64 * _MIB

GRAPH_BYTES = 16 * _MIB
"""The driver's own memory for the kernels of one captured step."""
STEP_MARGIN_BYTES = 512 * _MIB
"""Vendor libraries' workspaces, and fragmentation."""

_DENSE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_SIZE_STEP = 32

SHORT_PROMPT, LONGEST_PROMPT = 64, 4096
"""Prompt tokens of the least captured steps that have any, and the most of any of them: a longer
chunk takes any device longer than its launches take the host."""
_SHORT_LANES, _BETWEEN_LANES, _LONG_LANES = (16, 64), (64,), (64, 128)
"""Fewer than all rows. 4,096 tokens behind 128 rows take a device as long as behind 64; behind 256
a tenth longer."""


def padded_sizes(max_rows: int) -> tuple[int, ...]:
    """Lanes of the captured steps: small ones closely, then every 32; the last is `max_rows`."""
    sizes = [size for size in _DENSE_SIZES if size < max_rows]
    sizes += range(_DENSE_SIZES[-1] + _SIZE_STEP, max_rows, _SIZE_STEP)
    return (*sizes, max_rows)


def prompt_sizes(max_rows: int, chunk: int) -> tuple[tuple[int, int], ...]:
    """Prompt tokens, and decode lanes before them, of all captured steps with prompts that there
    may be, the smallest first; those between the least and the largest are for quick devices.

    Prompts alone have sizes of their own: lanes of padding take attention as long as 2 % of a
    chunk does.

    Args:
        max_rows: lanes of the largest decode step.
        chunk: most prompt tokens of a step; 0: there are to be none.
    """
    if not chunk:
        return ()
    chunk = min(chunk, LONGEST_PROMPT)
    short = min(chunk, SHORT_PROMPT)
    between = tuple(short << power for power in range(1, 7) if short << power < chunk)
    kinds = [((short,), _SHORT_LANES), (between, _BETWEEN_LANES)]
    if short < chunk:
        kinds.append(((chunk,), _LONG_LANES))
    return tuple(
        (tokens, lanes)
        for sizes, few in kinds
        for tokens in sizes
        for lanes in sorted({0, max_rows, *(each for each in few if each < max_rows)})
    )


def scratch_bytes(hparams: HParams, chunk: int, max_rows: int, element_bytes: int) -> int:
    """Intermediate tensors of the largest step: activations, logits, one matrix being packed."""
    tokens = chunk + max_rows
    logits = 4 * max_rows * hparams.vocab_size * 4
    matrix = hparams.vocab_size * hparams.hidden_size * element_bytes
    return (
        tokens * _token_elements(hparams) * element_bytes + logits + matrix + (_FIXED_SCRATCH_BYTES)
    )


def device_step_bytes(scratch: int, max_rows: int, captured_chunk: int) -> int:
    """Steps on a GPU, before they are measured there: an upper bound.

    Args:
        scratch: of the largest step, which the captured steps share as one pool beside it.
        max_rows: lanes of the largest captured step.
        captured_chunk: most prompt tokens of one; 0: none of them has any.
    """
    num_graphs = len(padded_sizes(max_rows)) + len(prompt_sizes(max_rows, captured_chunk))
    return 2 * scratch + num_graphs * GRAPH_BYTES + STEP_MARGIN_BYTES


def kept_step_bytes(hparams: HParams, max_rows: int, element_bytes: int) -> int:
    """What captured decode steps hold on a GPU while their model is away, an upper bound: the
    driver's memory of each, the largest one's logits and intermediate tensors.

    Args:
        hparams: of the model.
        max_rows: lanes of the largest.
        element_bytes: of the type it computes in.
    """
    sizes = padded_sizes(max_rows)
    # As the model computes them, and adjusted ones of 4 bytes.
    lines = max_rows * (element_bytes + 4) * hparams.vocab_size
    tokens = max_rows * _token_elements(hparams) * element_bytes
    return len(sizes) * GRAPH_BYTES + lines + tokens + _FIXED_SCRATCH_BYTES


def _token_elements(hparams: HParams) -> int:
    """Numbers kept at a time for one token of a step, in its widest layer."""
    q_rows = hparams.num_heads * hparams.head_dim * (2 if hparams.gated_attention else 1)
    kv_rows = hparams.num_kv_heads * hparams.head_dim
    mixing = 3 * q_rows + 4 * kv_rows
    linear = hparams.linear_attention
    if linear is not None:
        mixing = max(mixing, 3 * linear.conv_channels + 4 * linear.value_size)
    feed = 3 * hparams.intermediate_size
    experts = hparams.experts
    if experts is not None:
        routed = experts.num_per_token * (3 * experts.size + 2 * hparams.hidden_size)
        feed = routed + 3 * experts.shared_size + 2 * experts.num_experts
    return 4 * hparams.hidden_size + mixing + feed
