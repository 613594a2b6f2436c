"""Budgets: who says how long a model may think, and what a request gets of it."""

from __future__ import annotations

from typing import Any

import pytest

from luce.errors import UsageError
from luce.text.budgets import Allotment, BudgetEnvelope, BudgetOptions, resolve_budgets
from luce.text.model_card import ModelCard, find_card
from luce.text.reasoning import EFFORTS, ReasoningRequest

QWEN_TIERS = (4032, 16128, 32256, 56832, 81408)


def resolve(
    card: ModelCard | None = None, architecture: str = "llama", **options: Any
) -> BudgetEnvelope:
    return resolve_budgets(BudgetOptions(**options), card, architecture)


def tiers(budgets: BudgetEnvelope) -> tuple[int, ...]:
    assert tuple(budgets.effort_tiers) == EFFORTS
    return tuple(budgets.effort_tiers.values())


class TestWhoSaysSo:
    @pytest.mark.parametrize(
        ("architecture", "length", "source"),
        [
            ("qwen35", 32768, "family:qwen35"),
            ("qwen36moe", 32768, "family:qwen36"),
            ("qwen3", 32768, "family:qwen3"),
            ("qwen3moe", 32768, "family:qwen3"),
            ("gemma4", 16384, "family:gemma4"),
            ("laguna", 32768, "family:laguna"),
            ("qwen2", 16000, "hard-fallback"),
            ("llama", 16000, "hard-fallback"),
        ],
    )
    def test_families(self, architecture: str, length: int, source: str) -> None:
        budgets = resolve(architecture=architecture)
        assert (budgets.default_max_tokens, budgets.source) == (length, source)
        assert budgets.hard_limit_reply_budget == 4096
        assert budgets.think_max_tokens == length - 4096

    def test_a_card_before_its_family(self) -> None:
        budgets = resolve(ModelCard("c.json", 8000, None, 1000), "qwen35")
        assert (budgets.default_max_tokens, budgets.source) == (8000, "c.json")
        assert (budgets.hard_limit_reply_budget, budgets.think_max_tokens) == (1000, 7000)

    def test_the_operator_before_the_card(self) -> None:
        card = find_card("Qwen3.6-27B")
        budgets = resolve(
            card,
            default_max_tokens=10000,
            hard_limit_reply_budget=2000,
            effort_tiers={"low": 1, "max": 90000},
        )
        assert budgets.default_max_tokens == 10000
        assert budgets.hard_limit_reply_budget == 2000
        assert budgets.think_max_tokens == 8000
        assert tiers(budgets) == (1, *QWEN_TIERS[1:4], 90000)
        assert budgets.source == "luce:qwen3.6-27b.json"

    def test_thinking_is_never_above_the_cards_without_being_asked_for(self) -> None:
        card = ModelCard("c", 8000, None, 1000)
        assert resolve(card, default_max_tokens=20000).think_max_tokens == 7000
        assert resolve(card, think_max_tokens=19000).think_max_tokens == 19000

    def test_the_operators_ceiling_holds_for_all_tiers_but_those_said(self) -> None:
        card = find_card("Qwen3.6-27B")
        budgets = resolve(card, think_max_tokens=5000)
        assert tiers(budgets) == (4032, 5000, 5000, 5000, 5000)
        budgets = resolve(card, think_max_tokens=5000, effort_tiers={"max": 9000})
        assert tiers(budgets) == (4032, 5000, 5000, 5000, 9000)

    def test_a_reply_budget_nobody_asked_for_takes_at_most_half(self) -> None:
        assert resolve(default_max_tokens=1000).think_max_tokens == 500
        said = resolve(default_max_tokens=1000, hard_limit_reply_budget=4096)
        assert said.think_max_tokens == 0
        assert tiers(said) == (0, 0, 0, 0, 0)


class TestTiers:
    def test_of_the_reference_model_with_and_without_its_own(self) -> None:
        card = find_card("Qwen3.6-27B")
        assert tiers(resolve(card)) == QWEN_TIERS
        bare = ModelCard("c", 32768, 81920, 512)
        assert tiers(resolve(bare)) == QWEN_TIERS

    def test_without_lengths_for_hard_problems_the_highest_are_high(self) -> None:
        assert tiers(resolve(ModelCard("c", 9000, None, 1000))) == (1000, 4000, 8000, 8000, 8000)

    def test_they_must_grow(self) -> None:
        with pytest.raises(UsageError) as caught:
            resolve(find_card("Qwen3.6-27B"), effort_tiers={"medium": 4000})
        assert "effort medium has fewer tokens (4000) than low (4032)" in str(caught.value)
        assert "--reasoning-effort-medium" in str(caught.value)

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ({"low": 9000}, (9000, 9000, 11904, 11904, 11904)),
            ({"x-high": 12000}, (1488, 5952, 11904, 12000, 12000)),
            ({"max": 1000}, (1000, 1000, 1000, 1000, 1000)),
            ({"medium": 2, "high": 4}, (2, 2, 4, 11904, 11904)),
        ],
    )
    def test_those_nobody_said_keep_between_the_others(
        self, said: dict[Any, int], expected: tuple[int, ...]
    ) -> None:
        assert tiers(resolve(effort_tiers=said)) == expected

    def test_they_fit_the_context(self) -> None:
        budgets = resolve(find_card("Qwen3.6-27B")).within(8192)
        assert tiers(budgets) == (4032, 7680, 7680, 7680, 7680)
        said = resolve(hard_limit_reply_budget=4096).within(1000)
        assert tiers(said) == (0, 0, 0, 0, 0)


def request(**fields: Any) -> ReasoningRequest:
    return ReasoningRequest(enabled=True, has_envelope=True, **fields)


class TestAllotment:
    BUDGETS = resolve(hard_limit_reply_budget=100, think_max_tokens=1000)

    @pytest.mark.parametrize(
        ("fields", "max_output", "whole", "thinking"),
        [
            ({}, 5000, 1100, 1000),
            ({"effort": "low"}, 5000, 225, 125),
            ({"effort": "high"}, 5000, 1100, 1000),
            ({"effort": "high"}, 500, 500, 400),
            ({"effort": "high"}, 60, 60, 0),
            ({"budget_tokens": 300}, 5000, 400, 300),
            ({"budget_tokens": 300, "effort": "low"}, 5000, 400, 300),
            ({"budget_tokens": 9999}, 5000, 1100, 1000),
            ({"budget_tokens": 0}, 5000, 100, 0),
            ({"budget_tokens": 300, "reply_budget": 40}, 5000, 340, 300),
            ({"budget_tokens": 300, "reply_budget": 9999}, 5000, 400, 300),
            ({"budget_tokens": 300}, 350, 350, 250),
            ({"budget_tokens": 0, "reply_budget": 0}, 5000, 0, 0),
            ({"reply_budget": 0}, 5000, 1000, 1000),
        ],
    )
    def test_arithmetic(
        self, fields: dict[str, Any], max_output: int, whole: int, thinking: int
    ) -> None:
        allotment = self.BUDGETS.allot(request(**fields), max_output)
        assert allotment == Allotment(whole, thinking)

    @pytest.mark.parametrize(
        ("fields", "max_output", "whole", "thinking"),
        [
            # 4096 for the reply is the default, and would leave nothing to think with.
            ({"budget_tokens": 1024}, 2048, 2048, 1024),
            ({"budget_tokens": 1500}, 2048, 2048, 1024),
            ({"effort": "low"}, 2000, 2000, 1000),
            ({"budget_tokens": 1000}, 16000, 5096, 1000),
            ({"effort": "high"}, 1, 1, 1),
        ],
    )
    def test_the_default_reply_budget_leaves_half(
        self, fields: dict[str, Any], max_output: int, whole: int, thinking: int
    ) -> None:
        assert resolve().allot(request(**fields), max_output) == Allotment(whole, thinking)

    def test_without_a_wish_there_is_none(self) -> None:
        assert self.BUDGETS.allot(ReasoningRequest(True, "high"), 5000) is None

    def test_a_reply_budget_of_0_closes_nothing(self) -> None:
        assert resolve(hard_limit_reply_budget=0).allot(request(effort="low"), 5000) is None
        card = ModelCard("c", 8000, None, 0)
        assert resolve(card).allot(request(budget_tokens=5), 5000) is None

    def test_whatever_is_asked_the_parts_fit(self) -> None:
        for budgets in (resolve(), self.BUDGETS, resolve(find_card("Qwen3.6-27B"))):
            for max_output in (1, 2, 99, 100, 101, 4096, 8192, 100_000):
                for fields in ({}, {"effort": "max"}, {"budget_tokens": 7}, {"reply_budget": 3}):
                    allotment = budgets.allot(request(**fields), max_output)
                    assert allotment is not None
                    assert 0 <= allotment.reasoning_tokens <= allotment.max_tokens <= max_output
