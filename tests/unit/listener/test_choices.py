from __future__ import annotations

from luce.listener.choices import choice_calls
from luce.text.call import ChatMessage, GenerationCall, SamplingOverrides

CALL = GenerationCall(model=None, messages=(ChatMessage("user", "x"),))


def test_one_choice_is_the_call_itself() -> None:
    assert choice_calls(CALL) == [CALL]


def test_each_choice_of_each_prompt_is_a_call() -> None:
    call = GenerationCall(model="m", messages=(), raw_prompts=("a", (1, 2)), n=2)
    calls = choice_calls(call)
    assert [c.raw_prompts for c in calls] == [("a",), ("a",), ((1, 2),), ((1, 2),)]
    assert {(c.model, c.n, c.num_choices) for c in calls} == {("m", 1, 1)}


def test_seeds() -> None:
    sampling = SamplingOverrides(seed=2**64 - 1)
    call = GenerationCall(model=None, messages=(), sampling=sampling, n=2)
    assert [c.sampling.seed for c in choice_calls(call)] == [2**64 - 1, 0]
    without = GenerationCall(model=None, messages=(), n=2)
    assert [c.sampling.seed for c in choice_calls(without)] == [None, None]
