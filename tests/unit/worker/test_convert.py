"""Messages and plain values: what is refused at the border, what is carried over."""

from __future__ import annotations

import math

import msgspec
import pytest

from luce.errors import InvalidGrammar
from luce.protocol import messages as wire
from luce.protocol.sampling import (
    HiddenRead,
    HiddenStates,
    ReasoningBudget,
    SamplingParams,
    TokenLogprobs,
)
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
    (output,) = convert.step_outputs(3, outcome)
    assert [delta.logprobs for delta in output.deltas] == [list(logprobs), None, []]
    raw = msgspec.msgpack.encode(output)
    assert msgspec.msgpack.decode(raw, type=wire.StepOutput) == output


def test_hidden_states_get_a_frame_each() -> None:
    states = HiddenStates(b"\0" * 8, b"", 16)
    outcome = StepOutcome(
        (
            SequenceDelta("a", (), "stop", hidden=states),
            SequenceDelta("b", (8,)),
            SequenceDelta("c", (), "stop", hidden=states),
        ),
        (),
    )
    outputs = convert.step_outputs(3, outcome)
    assert [[delta.request_id for delta in each.deltas] for each in outputs] == [
        ["b"],
        ["a"],
        ["c"],
    ]
    raw = msgspec.msgpack.encode(outputs[1])
    assert msgspec.msgpack.decode(raw, type=wire.StepOutput).deltas[0].hidden == states


def test_a_step_without_output_is_no_frame() -> None:
    assert convert.step_outputs(3, StepOutcome((), ())) == []


def reading(*layers: int, wants_mean: bool = False) -> wire.Submit:
    read = HiddenRead(layers, wants_mean)
    return wire.Submit("r", b"", SamplingParams(max_tokens=1, hidden=read))


def test_layers_are_counted_from_0_in_their_order() -> None:
    sampling = convert.with_layers(reading(3, -1, 0, -4), 4, 8)
    assert isinstance(sampling, SamplingParams)
    assert sampling.hidden == HiddenRead((3, 3, 0, 0))


def test_without_a_reading_nothing_is_changed() -> None:
    submit = wire.Submit("r", b"", SamplingParams(max_tokens=5))
    assert convert.with_layers(submit, 0, 0) is submit.sampling


@pytest.mark.parametrize("layers", [(), (4,), (-5,), (0, 2**64)])
def test_layers_that_cannot_be_read(layers: tuple[int, ...]) -> None:
    refused = convert.with_layers(reading(*layers), 4, 8)
    assert isinstance(refused, wire.Refused)
    assert (refused.reason, refused.error) == ("failed", "InvalidRequest")


def test_states_that_no_frame_holds() -> None:
    fits = convert.MAX_HIDDEN_BYTES // (4 * 256)
    layers = tuple(range(256))
    assert isinstance(convert.with_layers(reading(*layers), 256, fits), SamplingParams)
    assert isinstance(convert.with_layers(reading(*layers), 256, fits + 1), wire.Refused)
    mean = reading(*layers, wants_mean=True)
    assert isinstance(convert.with_layers(mean, 256, fits // 2 + 1), wire.Refused)
