"""Messages and plain values: what is refused at the border, what is carried over."""

from __future__ import annotations

import math

import msgspec
import pytest

from luce.errors import InvalidGrammar
from luce.protocol import messages as wire
from luce.protocol.sampling import ReasoningBudget, SamplingParams, TokenLogprobs
from luce.scheduler.outcome import SequenceDelta, StepOutcome
from luce.testing.byte_tokenizer import pack_prompt
from luce.worker import convert

VOCAB = 100


def submit(prompt: bytes = pack_prompt([1, 2]), **params: object) -> wire.Submit:
    sampling = SamplingParams(max_tokens=3, **params)  # type: ignore[arg-type]
    return wire.Submit("r", prompt, sampling)


def budget(*forced: int) -> ReasoningBudget:
    return ReasoningBudget(3, True, (), forced[-1:], forced)


def test_a_good_submission_gives_its_ids() -> None:
    good = submit(
        stop_token_ids=(0, 99), logprobs=20, reasoning=budget(0, 99), logit_bias={99: -1.0}
    )
    assert convert.prompt_ids(good, VOCAB) == (1, 2)


@pytest.mark.parametrize(
    ("bad", "about"),
    [
        (submit(b"\0\0\0"), "bytes"),
        (submit(pack_prompt([1, 100])), "100"),
        (submit(logit_bias={100: 1.0}), "logit_bias"),
        (submit(logit_bias={1: math.inf}), "logit_bias"),
        (submit(stop_token_ids=(3, 100)), "stop_token_ids has token 100"),
        (submit(stop_token_ids=(-1,)), "stop_token_ids has token -1"),
        (submit(reasoning=budget(5, 100)), "forced_ids has token 100"),
        (submit(logprobs=21), "logprobs is 21"),
        (submit(logprobs=-1), "logprobs is -1"),
    ],
)
def test_what_would_index_out_of_a_table_is_refused(bad: wire.Submit, about: str) -> None:
    refused = convert.prompt_ids(bad, VOCAB)
    assert isinstance(refused, wire.Refused)
    assert (refused.reason, refused.error) == ("failed", "InvalidRequest")
    assert about in refused.detail


def test_an_error_of_the_engine_becomes_a_refusal() -> None:
    refused = convert.failed("r", InvalidGrammar("no \ud800 good"))
    assert refused == wire.Refused("r", "failed", "InvalidGrammar", "no ? good")
    assert msgspec.msgpack.encode(refused)


def test_log_probabilities_travel_with_their_tokens() -> None:
    logprobs = (TokenLogprobs(-0.5, (7, 8), (-0.5, -math.inf)),)
    outcome = StepOutcome(
        (
            SequenceDelta("a", (7,), None, logprobs),
            SequenceDelta("b", (8,)),
            SequenceDelta("c", (), "stop", ()),
        ),
        (),
    )
    output = convert.step_output(3, outcome)
    assert [delta.logprobs for delta in output.deltas] == [list(logprobs), None, []]
    raw = msgspec.msgpack.encode(output)
    assert msgspec.msgpack.decode(raw, type=wire.StepOutput) == output
