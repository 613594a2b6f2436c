from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from luce.errors import ContextLengthExceeded, InvalidRequest
from luce.listener.sampling import check_fits, sampling_params
from luce.protocol.messages import Limits
from luce.protocol.sampling import GrammarSpec, ReasoningBudget, SamplingParams
from luce.text.budgets import BudgetOptions, resolve_budgets
from luce.text.call import ChatMessage, GenerationCall, SamplingOverrides
from luce.text.forced_close import ForcedClose
from luce.text.reasoning import ReasoningRequest


@dataclass
class Prompt:
    num_tokens: int
    prompt_bytes: bytes = b""
    stop_token_ids: tuple[int, ...] = (2,)
    grammar: GrammarSpec | None = None
    close: ForcedClose | None = None


def limits(max_ctx: int = 100, pool: int = 1000) -> Limits:
    return Limits(max_ctx=max_ctx, max_concurrency=1, kv_pool_tokens=pool, block_tokens=16)


def resolve(
    num_tokens: int = 10,
    defaults: dict[str, float] | None = None,
    output_cap: int | None = None,
    max_tokens: int | None = None,
    reasoning: ReasoningRequest | None = None,
    prompt: Prompt | None = None,
    **overrides: Any,
) -> SamplingParams:
    call = GenerationCall(
        model=None,
        messages=(ChatMessage("user", "x"),),
        sampling=SamplingOverrides(**overrides),
        max_tokens=max_tokens,
        reasoning=reasoning,
    )
    return sampling_params(
        call,
        prompt or Prompt(num_tokens),
        limits(),
        defaults=defaults or {},
        budgets=resolve_budgets(
            BudgetOptions(default_max_tokens=output_cap, hard_limit_reply_budget=10), None, "llama"
        ),
        vocab_size=50,
    )


def test_greedy_without_a_word_from_anybody() -> None:
    params = resolve()
    assert params == SamplingParams(max_tokens=90, stop_token_ids=(2,))


def test_request_over_model_over_default() -> None:
    params = resolve(defaults={"temperature": 0.6, "top_k": 20.0}, temperature=0.0, min_p=0.1)
    assert params.temperature == 0.0
    assert params.top_k == 20
    assert isinstance(params.top_k, int)
    assert (params.min_p, params.top_p) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("asked", "cap", "expected"),
    [(None, None, 90), (None, 7, 7), (None, 500, 90), (5, 7, 5), (20, 7, 20), (10**9, 7, 90)],
)
def test_max_tokens(asked: int | None, cap: int | None, expected: int) -> None:
    assert resolve(max_tokens=asked, output_cap=cap).max_tokens == expected


def test_room_for_one_token_is_enough() -> None:
    check_fits("m", Prompt(99), limits().max_seq_tokens)
    assert resolve(num_tokens=99).max_tokens == 1


@pytest.mark.parametrize(("held", "num_tokens"), [(limits(), 100), (limits(pool=64), 64)])
def test_prompt_too_long(held: Limits, num_tokens: int) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        check_fits("m", Prompt(num_tokens), held.max_seq_tokens)
    assert str(num_tokens) in caught.value.message
    assert f"at most {held.max_seq_tokens}" in caught.value.message


def test_logit_bias_ids() -> None:
    assert resolve(logit_bias={0: 1.0, 49: -1.0}).logit_bias == {0: 1.0, 49: -1.0}
    for token_id in (-1, 50):
        with pytest.raises(
            InvalidRequest, match=rf"^logit_bias\.{token_id}: there is no such token"
        ) as caught:
            resolve(logit_bias={token_id: 1.0})
        assert caught.value.param == f"logit_bias.{token_id}"


def test_seed_zero_is_a_seed() -> None:
    assert resolve(seed=0).seed == 0
    assert resolve().seed is None


def test_what_is_passed_on_as_it_is() -> None:
    grammar = GrammarSpec("start: /x/")
    params = resolve(prompt=Prompt(10, grammar=grammar), min_tokens=3, logprobs=0)
    assert (params.grammar, params.min_tokens, params.logprobs) == (grammar, 3, 0)
    assert resolve().logprobs is None


CLOSE = ForcedClose((7,), (8,), (6, 8), starts_open=True)


def test_a_budget_lowers_the_output_and_says_when_to_close() -> None:
    asks = ReasoningRequest(True, has_envelope=True, budget_tokens=20)
    params = resolve(reasoning=asks, prompt=Prompt(10, close=CLOSE))
    assert params.max_tokens == 30
    assert params.reasoning == ReasoningBudget(20, True, (7,), (8,), (6, 8))
    params = resolve(reasoning=asks, prompt=Prompt(75, close=CLOSE))  # room for 25
    assert params.max_tokens == 25
    assert params.reasoning is not None
    assert params.reasoning.max_tokens == 15


def test_least_tokens_beyond_the_budgets_are_refused() -> None:
    asks = ReasoningRequest(True, has_envelope=True, budget_tokens=20)
    prompt = Prompt(10, close=CLOSE)
    assert resolve(reasoning=asks, prompt=prompt, min_tokens=30).min_tokens == 30
    with pytest.raises(InvalidRequest, match=r"min_tokens is 31.* 30 tokens") as caught:
        resolve(reasoning=asks, prompt=prompt, min_tokens=31)
    assert caught.value.param == "min_tokens"
    assert resolve(prompt=prompt, min_tokens=31).min_tokens == 31


@pytest.mark.parametrize(
    ("asks", "close"),
    [
        (None, CLOSE),
        (ReasoningRequest(True), CLOSE),
        (ReasoningRequest(True, has_envelope=True, budget_tokens=20), None),
    ],
)
def test_no_budget(asks: ReasoningRequest | None, close: ForcedClose | None) -> None:
    params = resolve(reasoning=asks, prompt=Prompt(10, close=close))
    assert params.max_tokens == 90
    assert params.reasoning is None
