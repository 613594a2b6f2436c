"""`ops.moe.FewTokensMixture` over quantised experts, with the kernels of `moe_decode`.

The norm leaves its result both as numbers, for the router, and as the 16-bit words that the
products take. Formats with a table of values want those in another order, so there may be two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from luce.engine.ops.cuda.moe_many import ManyMixture
from luce.engine.ops.moe import Router, Routing
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton import moe_choose
from luce.engine.ops.triton.moe_choose import ChosenWords
from luce.engine.ops.triton.moe_decode import inner_products
from luce.engine.ops.triton.moe_outer import outer_products
from luce.engine.ops.triton.moe_pick import LEAST_BLOCK, is_paired
from luce.engine.ops.triton.moe_quant import PlanesOfExperts
from luce.engine.ops.triton.norm_quantise import norm_and_quantise
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two

MOST_TOKENS = 16
"""Beyond, tiles of an expert's tokens are faster: 85 us instead of 96 for 20 tokens of 35B-A3B."""
_MANY_TOKENS = 64
"""With `moe_many`, by up to `MOST_TOKENS` at a time: by the step of 64 rows of 35B-A3B, tiles take
some 300 us a layer where tokens choose as they like, 197 experts; four times 57 are predicted."""
_CHOOSING_TOKENS = 4
"""That the first kernel chooses for, too: its last program does so one by one, which for 16 tokens
takes 7 us, a kernel of its own 2."""
_FEW_PAIRS = 64
_THREAD_ROWS = 4
"""Of the gate, and as many of up."""


@dataclass(frozen=True, slots=True)
class FewTiling:
    """How the two kernels cut their work.

    Attributes:
        inner_rows: rows of the gate, and as many of up, of a program; a thread has up to four.
        outer_rows: rows of the result that a program makes at a time.
        outer_turns: times it does so, if all its token's choices are one product.
        outer_columns: groups of the choices that are one product.
        run: tokens of an expert that a program takes.
    """

    inner_rows: int = 8
    outer_rows: int = 8
    outer_turns: int = 4
    outer_columns: int = 128
    run: int = 8


FewTilings = tuple[FewTiling, FewTiling]
"""For one token, and for more. Sums have the same order in both."""
DEFAULT_TILINGS: FewTilings = (
    FewTiling(inner_rows=4, outer_turns=1),
    FewTiling(),
)


@dataclass(frozen=True, slots=True)
class FewTokens:
    """`ops.moe.FewTokensMixture`.

    Attributes:
        inner: gate | up of all experts.
        outer: down of all experts.
        s_inner: gate | up of the shared expert, where there is one.
        s_outer: its down.
        arrivals: of `moe_choose.choose`.
        tilings: of the kernels.
        many: for more tokens than the first kernel chooses for, where it serves.
    """

    inner: PlanesOfExperts
    outer: PlanesOfExperts
    s_inner: PlanesOfExperts | None
    s_outer: PlanesOfExperts | None
    arrivals: torch.Tensor
    tilings: FewTilings
    many: ManyMixture | None = None

    @property
    def most_tokens(self) -> int:
        """Tokens it is for."""
        return MOST_TOKENS if self.many is None else _MANY_TOKENS

    def __call__(self, hidden: torch.Tensor, norm: NormWeight, router: Router) -> torch.Tensor:
        """hidden + mixture(norm(hidden)), in place."""
        if self.many is not None and len(hidden) > _CHOOSING_TOKENS:
            # In even parts, so that none falls among the few, whose last bits are others.
            for part in hidden.tensor_split(-(-len(hidden) // MOST_TOKENS)):
                self.many.add(part, norm, router)
            return hidden
        orders = self._orders(self.inner, self.s_inner)
        block = 0
        if not moe_choose.takes(router.gate, len(hidden)):
            x, words = norm_and_quantise(hidden, norm, orders)
            chosen = ChosenWords(words, *router.choose(x))
        elif len(hidden) == 1:
            # The kernels behind it choose for themselves, each program.
            words, logits = moe_choose.words_and_logits(hidden, norm, router, orders)
            has_gate = logits.shape[1] > router.num_experts
            gate = logits[:, router.num_experts :] if has_gate else None
            chosen = ChosenWords(words, Routing(logits, logits), gate)
            block = power_of_two(router.num_experts, LEAST_BLOCK)
        elif len(hidden) <= _CHOOSING_TOKENS:
            chosen = moe_choose.choose(hidden, norm, router, orders, self.arrivals)
        else:
            words, logits = moe_choose.words_and_logits(hidden, norm, router, orders)
            chosen = ChosenWords(words, *router.choose_by(logits))
        results = self._inner(chosen, orders, router, block)
        self._outer(hidden, results, chosen, router, block)
        return hidden

    @staticmethod
    def _orders(*stacks: PlanesOfExperts | None) -> tuple[bool, ...]:
        return tuple(sorted({_order(stack) for stack in stacks if stack is not None}))

    def _inner(
        self,
        chosen_words: ChosenWords,
        orders: tuple[bool, ...],
        router: Router,
        block_experts: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gated products of every pair, and of every token with the shared expert; float32."""
        routing, words = chosen_words.routing, chosen_words.words
        mine, theirs = (
            words[orders.index(_order(each))] for each in (self.inner, self.s_inner or self.inner)
        )
        tokens, chosen = len(routing.experts), router.num_chosen
        size, pairs, tiling = self.inner.rows // 2, tokens * chosen, self.tilings[tokens > 1]
        shared = self.s_inner
        s_size = 0 if shared is None else shared.rows // 2
        inner, s_inner = (
            torch.empty(count, width, dtype=torch.float32, device=words.device)
            for count, width in ((pairs, size), (tokens, s_size))
        )
        runs = 0 if shared is None else triton.cdiv(tokens, tiling.run)
        block = 0 if tokens == 1 else power_of_two(pairs, _FEW_PAIRS)
        block_groups = power_of_two(self.inner.groups)
        parts = triton.cdiv(max(size, s_size), tiling.inner_rows)
        inner_products[(parts, runs + pairs)](
            mine, theirs, routing.experts, inner, s_inner,
            *self.inner.pointers, *(shared or self.inner).pointers, pairs, runs,
            router.loads, self.outer.planes.codes,
            CHOSEN=chosen, SIZE=size, S_SIZE=s_size, num_groups=self.inner.groups,
            BN=tiling.inner_rows, BG=block_groups, RUN=tiling.run, BLOCK_PAIRS=block,
            **self.inner.codings(), **(shared or self.inner).codings("S_"),
            ASM=self.inner.uses_assembly, EXPERTS=router.num_experts,
            BLOCK_EXPERTS=block_experts, PAIRED=is_paired(routing.experts),
            AHEAD=_ahead(self.outer) if tokens == 1 else 0,
            num_warps=_warps(block_groups * max(1, tiling.inner_rows // _THREAD_ROWS)), **LAUNCH,
        )  # fmt: skip
        return inner, s_inner

    def _outer(
        self,
        hidden: torch.Tensor,
        results: tuple[torch.Tensor, torch.Tensor],
        chosen_words: ChosenWords,
        router: Router,
        block_experts: int,
    ) -> None:
        """Add the weighted sums of down's products."""
        routing, gate = chosen_words.routing, chosen_words.gate
        (tokens, size), chosen = hidden.shape, router.num_chosen
        shared, tiling = self.s_outer, self.tilings[tokens > 1]
        block = power_of_two(self.outer.groups)
        choices = max(1, min(power_of_two(chosen), tiling.outer_columns // block))
        turns = tiling.outer_turns if choices >= chosen else 1
        outer_products[(tokens, triton.cdiv(size, tiling.outer_rows * turns))](
            *results, routing.experts, routing.weights, hidden if gate is None else gate, hidden,
            0 if gate is None else gate.stride(0),
            *self.outer.pointers, *(shared or self.outer).pointers,
            CHOSEN=chosen, CHOICES=choices, HIDDEN=size, BN=tiling.outer_rows,
            num_groups=self.outer.groups, BG=block,
            s_num_groups=0 if shared is None else shared.groups,
            S_BG=1 if shared is None else power_of_two(shared.groups),
            **self.outer.codings(), **(shared or self.outer).codings("S_"),
            ASM=self.outer.uses_assembly, TURNS=turns, NORM=router.norm_weights,
            EXPERTS=router.num_experts, BLOCK=block_experts,
            num_warps=_warps(choices * block), **LAUNCH,
        )  # fmt: skip


def _ahead(stack: PlanesOfExperts) -> int:
    """Words of an expert's codes."""
    return stack.planes.codes.numel() * stack.rows // stack.planes.rows


def _warps(threads: int) -> int:
    return min(16, max(1, threads // 32))


def _order(planes: PlanesOfExperts) -> bool:
    """Whether its codes stand for a table's values, whose words of x are ordered otherwise."""
    return bool(planes.flags["TABLE"])
