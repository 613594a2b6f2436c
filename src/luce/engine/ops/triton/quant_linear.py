"""Chooses among the quantised kernels by the number of rows and runs them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from luce.engine.ops.cuda.quant_stage import Rows
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.quant_matmul import check_parts
from luce.engine.ops.stored_linear import StoredLinear
from luce.engine.ops.triton.norm_quantise import MOST_GROUPS, PartWords, norm_and_quantise
from luce.engine.ops.triton.numeric import INTERPRETED, LAUNCH, power_of_two
from luce.engine.ops.triton.probe import launch_refusal
from luce.engine.ops.triton.quant_activations import quantise_rows
from luce.engine.ops.triton.quant_part import QuantPart
from luce.engine.ops.triton.quant_tile import add_partials, dequantise, quant_tile_product
from luce.engine.ops.triton.quant_tilings import (
    DEFAULT_TILINGS,
    QuantTilings,
    TileTiling,
    VectorTiling,
)
from luce.engine.ops.triton.quant_vector import quant_vector
from luce.engine.ops.triton.words_choice import add_words
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import GROUP

_ADD_BLOCK = 1024
_QUANTISE_GROUPS = 16
_ROW_RUN = 64
_PART_TOKENS = 4


class MmaProduct(Protocol):
    """Another kernel for products it takes."""

    def takes(self, planes: QuantPlanes, x: torch.Tensor) -> bool:
        """Whether it multiplies these."""

    def prepared(self, x: torch.Tensor, norm: NormWeight | None = None) -> Rows | None:
        """x as `multiply` takes it, once for all matrices that it meets.

        None where there is a norm that does not go with it.
        """

    def multiply(
        self,
        planes: QuantPlanes,
        x: Rows,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
    ) -> None:
        """out = x W^T (+ bias) (+ residual)."""


class TritonQuantLinear(StoredLinear):
    """A `Linear` of quantised matrices on a GPU, or in Triton's interpreter.

    Args:
        parts: the matrices, one below the other.
        bias: of all of them.
        tilings: measured about the processor.
        mma: goes first where it takes a product.
    """

    def __init__(
        self,
        parts: list[QuantPlanes],
        bias: torch.Tensor | None,
        tilings: QuantTilings = DEFAULT_TILINGS,
        mma: MmaProduct | None = None,
    ) -> None:
        super().__init__(parts, bias)
        self._rows, self._columns = check_parts(parts, bias)
        self._mma = mma
        self._bias = bias
        self._tilings = tilings
        self._uses_assembly = (
            not INTERPRETED and parts[0].codes.is_cuda and torch.version.hip is None
        )
        self._parts: list[QuantPart] = []
        start = 0
        for planes in parts:
            self._parts.append(QuantPart.of(planes, start))
            start += planes.rows

    @property
    def planes(self) -> QuantPlanes | None:
        """Its matrix, where it is a single one without a bias."""
        return None if len(self._parts) > 1 or self._bias is not None else self._parts[0].planes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K] → [T, N]."""
        y = torch.empty(len(x), self._rows, dtype=x.dtype, device=x.device)
        return self._run(x, y, None)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place."""
        return self._run(x, residual, residual)

    def normed(self, x: torch.Tensor, norm: NormWeight) -> torch.Tensor | None:
        """The product of norm(x), or None where the norm does not leave x as the kernel wants it.

        Words for `quant_vector`, which programs would else make each for itself, or staged rows.
        """
        tokens, groups = len(x), self._columns // GROUP
        taken = [self._mma is not None and self._mma.takes(p.planes, x) for p in self._parts]
        if self._mma is not None and all(taken):
            rows = self._mma.prepared(x, norm)
            y = x.new_empty(tokens, self._rows)
            return None if rows is None else self._run(x, y, None, rows)
        if any(taken) or tokens > max(self._tilings.vector) or groups > MOST_GROUPS:
            return None
        orders = tuple(sorted({part.flags["table"] != 0 for part in self._parts}))
        facts = "norm_and_quantise", x.dtype, groups, orders
        if launch_refusal(facts, lambda: norm_and_quantise(x, norm, orders)) is not None:
            return None
        _, words = norm_and_quantise(x, norm, orders)
        y = torch.empty(tokens, self._rows, dtype=x.dtype, device=x.device)
        for part in self._parts:
            self._vector(part, x, y, None, words[orders.index(part.flags["table"] != 0)])
        return y

    @property
    def weight_facts(self) -> tuple[Hashable, ...]:
        """What its kernels are compiled for."""
        return self._columns, *(value for part in self._parts for value in part.flags.values())

    def order_of_parts(self, tokens: int) -> bool | None:
        """Of the words that `add_parts` takes for so many rows, as in `normed`; None: none."""
        orders = {part.flags["table"] != 0 for part in self._parts}
        return orders.pop() if len(orders) == 1 and tokens <= _PART_TOKENS else None

    def add_parts(self, residual: torch.Tensor, x: PartWords) -> torch.Tensor:
        """residual + y, in place."""
        return self._add_words(residual, x.words, x)

    def order_of_words(self, tokens: int) -> bool | None:
        """Of the words that `add_words` takes for so many rows; None: numbers are as fast.

        Programs of a large matrix quantise them while its weights come.
        """
        is_wide = all(part.planes.rows <= self._tilings.wide_rows for part in self._parts)
        return self.order_of_parts(tokens) if is_wide else None

    def add_words(self, residual: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """residual + y, in place, of rows in the order that `order_of_words` says.

        Args:
            residual: [T, N].
            words: int32 [T, 19, K / 32], as `norm_and_quantise` leaves them.
        """
        return self._add_words(residual, words, None)

    def _add_words(
        self, residual: torch.Tensor, words: torch.Tensor, parts: PartWords | None
    ) -> torch.Tensor:
        for part in self._parts:
            otherwise = partial(self._vector, part, quantised=words, by_parts=parts)
            x = words if parts is None else parts
            add_words(part, x, residual, otherwise, has_bias=self._bias is not None)
        return residual

    def _run(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        residual: torch.Tensor | None,
        rows: Rows | None = None,
    ) -> torch.Tensor:
        assert x.stride(1) == 1, "columns of x must lie closely"
        assert y.is_contiguous()
        tokens = len(x)
        for part in self._parts:
            if self._mma is not None and self._mma.takes(part.planes, x):
                rows = self._mma.prepared(x) if rows is None else rows
                assert rows is not None
                out = y[:, part.start :]
                old = None if residual is None else residual[:, part.start :]
                bias = None if self._bias is None else self._bias[part.start :]
                self._mma.multiply(part.planes, rows, out, bias, old)
            elif tokens <= max(self._tilings.vector):
                self._vector(part, x, y, residual)
            elif tokens <= max(self._tilings.tile):
                self._tile(part, x, y, residual)
            else:
                self._vendor(part, x, y, residual)
        return y

    def _has(self, residual: torch.Tensor | None) -> dict[str, bool]:
        return {"HAS_RESIDUAL": residual is not None, "HAS_BIAS": self._bias is not None}

    def _common(self, part: QuantPart) -> dict[str, int | bool | str]:
        flags = part.flags
        return {
            "num_groups": self._columns // GROUP,
            "CODES": flags["codes"],
            "HIGH": flags["high"],
            "ZERO": flags["zero"],
            "TABLE": flags["table"],
            "SIGNED": flags["is_signed"],
            "SCALE": flags["scale"],
            "ASM": self._uses_assembly,
        }

    def _vector(
        self,
        part: QuantPart,
        x: torch.Tensor,
        y: torch.Tensor,
        residual: torch.Tensor | None,
        quantised: torch.Tensor | None = None,
        by_parts: PartWords | None = None,
    ) -> None:
        tokens = len(x)
        tiling = next(t for limit, t in self._tilings.vector.items() if tokens <= limit)
        if (
            part.planes.rows <= self._tilings.wide_rows
            and self._columns >= 2 * GROUP * tiling.groups
        ):
            # Words take fewer registers and instructions: more programs of them pay.
            rows = tiling.rows if quantised is None or residual is None else tiling.rows // 2
            tiling = VectorTiling(rows, 2 * tiling.groups, 2 * tiling.warps)
        out = y[:, part.start :]
        is_large = part.planes.rows >= self._tilings.quantise_rows
        if quantised is None and (is_large or tokens >= self._tilings.quantise_from):
            quantised = self._quantised(x, part)
        quant_vector[(triton_cdiv(part.planes.rows, tiling.rows),)](
            x,
            x if quantised is None else quantised,
            out,
            out if residual is None else residual[:, part.start :],
            x if self._bias is None else self._bias[part.start :],
            *part.pointers,
            part.planes.rows,
            x.stride(0),
            y.stride(0),
            T=tokens,
            BN=tiling.rows,
            BG=tiling.groups,
            HAS_OFFSET=part.planes.format.has_offset,
            IS_QUANTISED=quantised is not None,
            WHOLE=part.planes.rows % tiling.rows == 0,
            **_facts_of(by_parts),
            **self._has(residual),
            num_warps=tiling.warps,
            **self._common(part),
            **LAUNCH,
        )

    def _quantised(self, x: torch.Tensor, part: QuantPart) -> torch.Tensor:
        """x as `quant_vector` wants it, made once instead of in every program."""
        tokens, groups = len(x), self._columns // GROUP
        out = torch.empty(tokens, 19, groups, dtype=torch.int32, device=x.device)
        quantise_rows[(tokens, triton_cdiv(groups, _QUANTISE_GROUPS))](
            x,
            out,
            x.stride(0),
            num_groups=groups,
            BG=_QUANTISE_GROUPS,
            TABLE=part.flags["table"],
            num_warps=1,
            **LAUNCH,
        )
        return out

    def _tile(
        self, part: QuantPart, x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor | None
    ) -> None:
        tokens, rows, groups = len(x), part.planes.rows, self._columns // GROUP
        tiling = next(t for limit, t in self._tilings.tile.items() if tokens <= limit)
        token_tile = self._token_tile(tokens)
        grid_rows, grid_tokens = triton_cdiv(rows, tiling.rows), triton_cdiv(tokens, token_tile)
        split = self._split(grid_rows * grid_tokens, groups, tiling)
        share = triton_cdiv(triton_cdiv(groups, split), tiling.groups) * tiling.groups
        out = y[:, part.start :]
        target, stride = out, y.stride(0)
        if split > 1:
            target = torch.empty(split, tokens, rows, dtype=torch.float32, device=x.device)
            stride = rows
        old = out if residual is None else residual[:, part.start :]
        bias = x if self._bias is None else self._bias[part.start :]
        has = self._has(residual)
        # Never begun before the kernel ahead of it ends: its programs would wait in the places of
        # those at work, and it took a fifth longer.
        quant_tile_product[(grid_rows, split, grid_tokens)](
            x,
            target,
            old,
            bias,
            *part.pointers,
            tokens,
            rows,
            x.stride(0),
            stride,
            BM=token_tile,
            BN=tiling.rows,
            BG=tiling.groups,
            SPLIT=split,
            SPLIT_GROUPS=share,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **has,
            **self._common(part),
        )
        if split > 1:
            self._add(target, out, old, bias, has)

    def _add(
        self,
        partials: torch.Tensor,
        out: torch.Tensor,
        old: torch.Tensor,
        bias: torch.Tensor,
        has: dict[str, bool],
    ) -> None:
        """Sum the shares of the columns into `out`."""
        split, tokens, rows = partials.shape
        add_partials[(triton_cdiv(rows, _ADD_BLOCK), tokens)](
            partials,
            out,
            old,
            bias,
            rows,
            out.stride(0),
            tokens * rows,
            SPLIT=split,
            BLOCK=_ADD_BLOCK,
            **has,
            **LAUNCH,
        )

    def _token_tile(self, tokens: int) -> int:
        least, most = self._tilings.tile_tokens
        return min(most, power_of_two(tokens, least))

    def _split(self, programs: int, groups: int, tiling: TileTiling) -> int:
        """Shares of the columns: a power of two that fills the processor."""
        split = 1
        while programs * split * 2 <= tiling.programs and groups // (split * 2) >= tiling.groups:
            split *= 2
        return split

    def _vendor(
        self, part: QuantPart, x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor | None
    ) -> None:
        rows, columns = part.planes.rows, self._columns
        # Whole runs of rows: results of an odd width would take the vendor's slowest kernels.
        wanted = self._tilings.scratch_elements // columns // _ROW_RUN * _ROW_RUN
        at_a_time = min(rows, max(_ROW_RUN, wanted))
        scratch = torch.empty(at_a_time, columns, dtype=x.dtype, device=x.device)
        for first in range(0, rows, at_a_time):
            count = min(at_a_time, rows - first)
            dequantise[(triton_cdiv(count, 16), triton_cdiv(columns // GROUP, 32))](
                scratch,
                *part.pointers,
                first,
                count,
                BN=16,
                BG=32,
                num_warps=4,
                **self._common(part),
                **LAUNCH,
            )
            start = part.start + first
            weight = scratch[:count]
            bias = None if self._bias is None else self._bias[start : start + count]
            out = y[:, start : start + count]
            if bias is not None:
                product = F.linear(x, weight, bias)
                out.copy_(product) if residual is None else out.add_(product)
            elif residual is None:
                torch.mm(x, weight.t(), out=out)
            else:
                torch.addmm(out, x, weight.t(), out=out)


def _facts_of(by_parts: PartWords | None) -> dict[str, object]:
    """The kernel's arguments about them."""
    if by_parts is None:
        return {}
    _, each, groups = by_parts.words.shape
    return {
        "squares_ptr": by_parts.squares,
        "eps": by_parts.eps,
        "HEAD_GROUPS": groups // by_parts.squares.shape[1],
        "PARTS": (each - 16) // 2,
    }


def triton_cdiv(size: int, part: int) -> int:
    """Parts needed to cover a size."""
    return -(-size // part)
