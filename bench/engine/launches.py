"""Which kernels a decode step of a hybrid starts, layer by layer, and what they must move.

    PYTHONPATH=src:. python -m bench.engine.launches --shape 35B-A3B:Q4_K --rows 1,4,16

Nothing is computed and no GPU is needed: a layer of each kind is built of tensors without memory,
with the operations a GPU is given, and runs while launches are noted instead of done. Kernels in
CUDA C++, which only a GPU's machine can compile, are left out.

The last column is a model, not a measurement: what is moved at a share of the copy rate, and a
fixed time for each launch. Both were set so that the one step that was measured comes out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from bench.engine.hybrid import experts_hit
from bench.engine.hybrid_shapes import (
    SIZES,
    QuantisedHybridParameters,
    hparams_of,
)
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import KernelInterface

from luce.engine.context import ForwardContext
from luce.engine.models.qwen35 import HybridBuilder
from luce.engine.ops import select
from luce.engine.ops.attention import AttentionBatch, AttentionTensors, HeadShape
from luce.engine.ops.candidates import Candidate, OpRequest
from luce.engine.ops.gated_delta import LayerState, StateBatch
from luce.engine.ops.qkv import TokenPlaces
from luce.engine.ops.triton import probe
from luce.engine.quant_planes import QuantPlanes, empty_planes
from luce.loaders.hparams import HParams
from luce.sizing.geometry import state_spec

_META = torch.device("meta")
_COPY = 4.28e12
"""Bytes a second of an H200, read plus written."""
_SHARE = 0.65
"""Of it, that products of few rows reach (docs/lab/quant.md)."""
_EACH = 1.6e-6
"""Seconds a launch adds: 19 launches and 40 MB took 45 us a layer (docs/lab/hybrid.md)."""
_BLOCK, _CONTEXT = 16, 1024
_NO_KERNEL = (
    "view", "slice", "select", "empty", "detach", "as_strided", "reshape", "expand", "unbind",
    "alias", "transpose", "aten.t.", "unsqueeze", "squeeze", "split", "permute",
)  # fmt: skip


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes PyTorch's operations that start a kernel."""

    def __init__(self, noted: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted = noted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = str(func)
        if not any(part in name for part in _NO_KERNEL):
            self._noted.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def noted_launches() -> Iterator[list[str]]:
    """The names of Triton's kernels and PyTorch's operations, in order; none is run."""
    noted: list[str] = []

    def launcher(kernel: Any, grid: object) -> Callable[..., None]:
        del grid
        return lambda *args, **options: noted.append(kernel.__name__)

    # Nothing can be tried on tensors without memory: every kernel is taken to work.
    works = mock.patch.object(probe, "failure_of", return_value=None)
    with works, mock.patch.object(KernelInterface, "__getitem__", launcher), _Operations(noted):
        yield noted


@contextmanager
def as_gpu() -> Iterator[None]:
    """Choose for tensors without memory what a GPU is given."""

    def on_gpu(request: OpRequest, load: Callable[[], Any]) -> list[Any]:
        del request
        return [Candidate(select.TRITON, load(), lambda _: None)]

    with mock.patch.object(select, "_on_gpu", on_gpu):
        yield


class EmptyParameters(QuantisedHybridParameters):
    """Parameters without memory."""

    def __init__(self, type_name: str) -> None:
        with mock.patch.object(torch, "Generator"):
            super().__init__(type_name, _META)

    def _normal(self, *shape: int, spread: float) -> torch.Tensor:
        del spread
        return torch.empty(*shape, dtype=torch.bfloat16, device=_META)

    def _planes(self, kind: str, rows: int, columns: int) -> QuantPlanes:
        return empty_planes(kind, rows, columns, _META)


@dataclass(frozen=True)
class Layers:
    """One layer of each kind.

    Attributes:
        parts: by name what runs of it.
        nbytes: by name what its matrices take; of a mixture, without the experts.
        expert_bytes: of one expert.
    """

    parts: dict[str, Callable[[torch.Tensor, ForwardContext], object]]
    nbytes: dict[str, int]
    expert_bytes: float


def layers_of(hparams: HParams, type_name: str, rows: int) -> Layers:
    """Build the last two layers of four, of which one is linear."""
    parameters = EmptyParameters(type_name)
    heads = HeadShape(hparams.num_heads, hparams.num_kv_heads, hparams.head_dim)
    request = OpRequest(_META, torch.bfloat16, heads, False, lanes=rows, max_ctx=_CONTEXT)
    with as_gpu(), noted_launches():
        ops = select.select_ops(request)
        builder = HybridBuilder(hparams, parameters, ops, _CONTEXT)
        nbytes: dict[str, int] = {}
        parts: dict[str, Callable[[torch.Tensor, ForwardContext], object]] = {}
        for name, index in (("linear attention", 2), ("full attention", 3)):
            before = parameters.step_bytes
            parts[name] = builder.attention(index, f"layers.{index}.").forward
            nbytes[name] = parameters.step_bytes - before
        before = parameters.step_bytes
        feed = builder.layer(2).mlp.forward
        name = "feed-forward" if hparams.experts is None else "mixture"
        parts[name] = lambda hidden, _: feed(hidden)
        nbytes[name] = parameters.step_bytes - before - nbytes["linear attention"]
    return Layers(parts, nbytes, parameters.expert_bytes)


def context_of(hparams: HParams, rows: int) -> ForwardContext:
    """A decode step of so many rows."""
    kinds = hparams.linear_attention
    assert kinds is not None

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=_META)

    ints = empty(rows, dtype=torch.int32)
    starts = empty(rows + 1, dtype=torch.int32)
    blocks = _CONTEXT // _BLOCK
    tables = empty(rows, blocks, dtype=torch.int32)
    tensors = AttentionTensors(tables, ints, ints, starts, num_decode=rows, max_queries=0)
    heads = HeadShape(hparams.num_heads, hparams.num_kv_heads, hparams.head_dim)
    request = OpRequest(_META, torch.bfloat16, heads, False, lanes=rows, max_ctx=_CONTEXT)
    with as_gpu():
        attention = select.select_ops(request).attention
    step = AttentionBatch((), (), (), _BLOCK, tensors=tensors)
    delta = (kinds.conv_kernel - 1) * kinds.conv_channels
    cells = kinds.num_value_heads * kinds.key_head_dim * kinds.value_head_dim
    state = LayerState(empty(rows, delta), empty(rows, cells, dtype=torch.float32))
    places = TokenPlaces(
        empty(rows, 1, hparams.rotated_dim // 2, 2, dtype=torch.float32),
        empty(rows, dtype=torch.int64),
    )
    cache = empty(rows * blocks, _BLOCK, 2, hparams.num_kv_heads, hparams.head_dim)
    return ForwardContext(
        places,
        attention.prepare(step),
        kv_layers=(cache,),
        states=StateBatch((), (), tensors),
        state_layers=(state,) * 4,
    )


def show(case: str, rows: int) -> None:
    """The table of a shape and a batch."""
    shape, _, type_name = case.partition(":")
    hparams = hparams_of(replace(SIZES[shape], layers=4))
    layers, context = layers_of(hparams, type_name or "Q4_K", rows), context_of(hparams, rows)
    state = state_spec(hparams, 2)
    assert state is not None
    assert hparams.linear_attention is not None
    state_bytes = state.bytes_per_slot / hparams.linear_attention.num_layers
    print(f"{case}, {rows} rows of {_CONTEXT} tokens")
    for name, run in layers.parts.items():
        moved = float(layers.nbytes[name])
        if name == "mixture":
            moved += experts_hit(hparams, rows) * layers.expert_bytes
        if name == "linear attention":
            moved += 2 * rows * state_bytes
        if name == "full attention":
            moved += rows * _CONTEXT * 4 * hparams.num_kv_heads * hparams.head_dim
        hidden = torch.empty(rows, hparams.hidden_size, dtype=torch.bfloat16, device=_META)
        with noted_launches() as noted:
            run(hidden, context)
        guess = moved / _COPY / _SHARE + len(noted) * _EACH
        counts = Counter(noted).items()
        kernels = ", ".join(f"{each} x{count}" if count > 1 else each for each, count in counts)
        print(
            f"  {name:<17}{len(noted):3} launches {moved / 1e6:7.1f} MB, "
            f"{moved / _COPY * 1e6:5.1f} us at the copy rate, perhaps {guess * 1e6:6.1f} us: "
            f"{kernels}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="35B-A3B:Q4_K", help="and the type of its matrices")
    parser.add_argument("--rows", default="1,4,16")
    options = parser.parse_args()
    with torch.inference_mode():
        for rows in options.rows.split(","):
            show(options.shape, int(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
