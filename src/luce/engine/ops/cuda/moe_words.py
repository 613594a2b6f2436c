"""`moe_words_inner.cu`, `moe_words_outer.cu`: a mixture of quantised experts of up to four tokens.

Codes of four bits meet words of 16-bit activations, as in Triton's kernels; `docs/lab/hybrid.md`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.moe import Router
from luce.engine.quant_planes import QuantPlanes

PRIMITIVES = ("hopper.cuh", "moe_primitives.cuh", "moe_words_primitives.cuh")
_SHARED_TEXTS = (*PRIMITIVES, "moe_numbers.cuh", "words_parts.cuh", "moe_words.cuh")
_WARPS = 4
"""Of a block of threads of the first kernel, each with rows of its own."""
_INNER_BLOCKS, _OUTER_BLOCKS = 3, 2
"""Of threads, that a multiprocessor's registers must hold."""
_LANE_COLUMNS = 1024
"""Of a row: a group of each lane."""
_PAIRS_OF_ROWS = 8
"""Groups of gates, and of ups, of a lane."""
_OUTER_ROWS = 8
_SIZES = (256, 512, 1024)
_MOST_CHOSEN = 15
_MOST_EXPERTS = 512
_TYPE = "Q4_K"


@dataclass(frozen=True, slots=True)
class WordMixture:
    """Gate and up, and down, of all experts and of the shared one.

    Attributes:
        num_experts: E.
        inner: gate | up of each expert, one below the other.
        outer: down of each.
        s_inner: of the shared expert, where there is one.
        s_outer: likewise.
    """

    num_experts: int
    inner: QuantPlanes
    outer: QuantPlanes
    s_inner: QuantPlanes | None
    s_outer: QuantPlanes | None

    def refusal(self, num_chosen: int) -> str | None:
        """Why the kernels are not made for it, or None."""
        planes = (self.inner, self.outer, self.s_inner, self.s_outer)
        if any(each is not None and each.format.name != _TYPE for each in planes):
            return f"made for {_TYPE}"
        hidden, size = self.inner.columns, self.outer.columns
        groups = hidden // _LANE_COLUMNS
        if hidden % _LANE_COLUMNS or groups > _PAIRS_OF_ROWS or groups & (groups - 1):
            return "made for other widths of hidden states"
        if size not in _SIZES or (self.s_outer is not None and self.s_outer.columns != size):
            return "made for other sizes of experts"
        is_odd = self.num_experts % 64 != 0 or self.num_experts > _MOST_EXPERTS
        return "made for other numbers of experts" if is_odd or num_chosen > _MOST_CHOSEN else None

    def add(
        self, hidden: torch.Tensor, words: torch.Tensor, logits: torch.Tensor, router: Router
    ) -> None:
        """hidden += mixture of rows that are given as words.

        Args:
            hidden: bfloat16 [T, K], contiguous.
            words: int32 [T, 19, K / 32]: of the normalised rows.
            logits: bfloat16 [T, E] or [T, E + 1]; rows begin at whole words.
            router: whose they are; its loads are counted up.

        Raises:
            RuntimeError: the device does not take the kernels.
        """
        tokens, (size, width) = len(hidden), (self.outer.columns, self.inner.columns)
        each = router.num_chosen + (self.s_inner is not None)
        inner, s_inner = (
            torch.empty(count, size, dtype=torch.float32, device=hidden.device)
            for count in (tokens * router.num_chosen, tokens)
        )
        facts = self.facts(router)
        rows = _PAIRS_OF_ROWS * _LANE_COLUMNS // width
        _compiled("moe_words_inner", facts)(
            (size // (rows * _WARPS), tokens * each, 1),
            (32 * _WARPS, 1, 1),
            [
                words, logits, inner, s_inner, *_operands(self.inner),
                *_operands(self.s_inner or self.inner), self.outer.codes,
                (self.s_outer or self.outer).codes, router.loads, logits.stride(0),
            ],
        )  # fmt: skip
        _compiled("moe_words_outer", facts)(
            (width // _OUTER_ROWS, tokens, 1),
            (32 * each, 1, 1),
            [
                inner, s_inner, logits, hidden, *_operands(self.outer),
                *_operands(self.s_outer or self.outer), logits.stride(0),
            ],
        )  # fmt: skip

    def facts(self, router: Router) -> tuple[int, ...]:
        """What the kernels are compiled for."""
        return (
            self.num_experts,
            router.num_chosen,
            self.inner.columns,
            self.outer.columns,
            int(self.s_inner is not None),
            int(router.norm_weights),
        )


def _operands(planes: QuantPlanes) -> list[torch.Tensor]:
    assert planes.blocks is not None
    return [planes.codes, planes.scales, planes.blocks]


@functools.cache
def _compiled(name: str, facts: tuple[int, ...]) -> DeviceKernel:
    names = ("EXPERTS", "CHOSEN", "HIDDEN", "SIZE", "HAS_SHARED", "NORM_WEIGHTS")
    constants = dict(zip(names, facts, strict=True))
    is_outer = name == "moe_words_outer"
    each = constants["CHOSEN"] + constants["HAS_SHARED"]
    constants["WARPS"] = _WARPS
    constants["BLOCKS"] = _OUTER_BLOCKS if is_outer else _INNER_BLOCKS
    shared_bytes = each * _OUTER_ROWS * 4 if is_outer else 0
    launch = KernelLaunch(shared_bytes, is_early=True)
    return compiled_kernel(name, (*_SHARED_TEXTS, f"{name}.cu"), constants, launch)
