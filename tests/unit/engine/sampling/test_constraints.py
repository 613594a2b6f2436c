"""What binds rows: masks of a step, verdicts after it, what a row keeps and what it does not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from luce.engine.sampling.constraints import RowConstraints
from luce.engine.sampling.grammar import GrammarCompiler
from luce.errors import InternalError, InvalidGrammar
from luce.protocol.sampling import GrammarSpec, SamplingParams
from luce.scheduler.plan import (
    GRAMMAR_ENDED_TOKEN,
    GRAMMAR_FAILED_TOKEN,
    RowStart,
    ScheduledSequence,
)

END, OTHER_END = 256, 257
VOCAB = 300
TOKENS = [*(bytes([byte]) for byte in range(256)), b"<end>", b"<eot>"]
ABC = GrammarSpec("start: /[a-c]{2,3}/")
ALL = set(range(VOCAB))


@pytest.fixture
def constraints() -> Iterator[RowConstraints]:
    made = RowConstraints(4, VOCAB)
    made.use_vocabulary(TOKENS, [END, OTHER_END], [END, OTHER_END])
    yield made
    made.close()


def start(
    constraints: RowConstraints, row: int, output: str = "", prompt: str = "zz", **params: object
) -> None:
    sampling = SamplingParams(
        max_tokens=9,
        **{"stop_token_ids": (END, OTHER_END), **params},  # type: ignore[arg-type]
    )
    history = tuple(f"{prompt}{output}".encode())
    constraints.start([RowStart(row, sampling, 0, history, len(prompt))])


def item(row: int, index: int = 0, forced: int | None = None) -> ScheduledSequence:
    return ScheduledSequence(row, 9, (), (1,), True, output_index=index, forced_token=forced)


def allowed(constraints: RowConstraints, *items: ScheduledSequence) -> dict[int, set[int]]:
    step = constraints.begin(items)
    if step is None:
        return {}
    masks = step.masks()
    bits = np.unpackbits(masks.words.view(np.uint8), axis=1, count=VOCAB, bitorder="little")
    return dict(
        zip(masks.lines, (set(np.flatnonzero(line).tolist()) for line in bits), strict=True)
    )


def advance(constraints: RowConstraints, row: int, *token_ids: int) -> list[int]:
    """Steps of one row alone."""
    settled = []
    for index, token_id in enumerate(token_ids):
        step = constraints.begin([item(row, index)])
        assert step is not None
        step.masks()
        settled += step.settle([token_id])
    return settled


def test_rows_that_ask_for_nothing_have_no_step(constraints: RowConstraints) -> None:
    start(constraints, 0)
    start(constraints, 1, min_tokens=2, stop_token_ids=())
    assert constraints.begin([item(0), item(1)]) is None


def test_only_bound_lines_are_masked(constraints: RowConstraints) -> None:
    start(constraints, 0)
    start(constraints, 1, grammar=ABC)
    start(constraints, 2, min_tokens=1)
    found = allowed(constraints, item(2), item(0), item(1))
    assert found == {0: ALL - {END, OTHER_END}, 2: set(b"abc")}


def test_a_matcher_goes_on_with_what_was_chosen(constraints: RowConstraints) -> None:
    start(constraints, 1, grammar=ABC)
    assert advance(constraints, 1, *b"ab") == list(b"ab")
    assert allowed(constraints, item(1, 2)) == {0: {*b"abc", END, OTHER_END}}
    assert advance(constraints, 1, *b"c") == list(b"c")
    assert allowed(constraints, item(1, 3)) == {0: {END, OTHER_END}}


def test_a_resumed_row_has_consumed_its_output_and_not_its_prompt(
    constraints: RowConstraints,
) -> None:
    start(constraints, 0, grammar=ABC, prompt="abc", output="ab")
    assert allowed(constraints, item(0, 2)) == {0: {*b"abc", END, OTHER_END}}


def test_an_output_that_no_longer_fits_is_a_failure_of_its_row(
    constraints: RowConstraints,
) -> None:
    start(constraints, 0, grammar=ABC, output="xx")
    start(constraints, 1, grammar=ABC)
    step = constraints.begin([item(0, 2), item(1)])
    assert step is not None
    step.masks()
    assert step.settle([ord("a"), ord("a")]) == [GRAMMAR_FAILED_TOKEN, ord("a")]


def test_a_new_occupant_is_free_of_the_former_ones_grammar(constraints: RowConstraints) -> None:
    start(constraints, 0, grammar=ABC, min_tokens=5)
    start(constraints, 0)
    assert constraints.begin([item(0)]) is None


def test_stop_tokens_are_barred_until_the_output_is_long_enough(
    constraints: RowConstraints,
) -> None:
    start(constraints, 0, min_tokens=2, stop_token_ids=(5, 70))
    assert allowed(constraints, item(0, 1)) == {0: ALL - {5, 70}}
    assert allowed(constraints, item(0, 2)) == {}


def test_a_grammar_that_may_end_goes_on_while_the_output_is_short(
    constraints: RowConstraints,
) -> None:
    start(constraints, 0, grammar=ABC, min_tokens=3, output="ab")
    assert allowed(constraints, item(0, 2)) == {0: set(b"abc")}


def test_a_grammar_that_must_end_ends_a_short_output(constraints: RowConstraints) -> None:
    start(constraints, 0, grammar=ABC, min_tokens=9, output="abc")
    assert allowed(constraints, item(0, 3)) == {0: {END, OTHER_END}}


def test_the_end_is_said_with_the_requests_own_stop_tokens(constraints: RowConstraints) -> None:
    start(constraints, 0, grammar=ABC, output="ab", stop_token_ids=(OTHER_END, 7))
    assert allowed(constraints, item(0, 2)) == {0: {*b"abc", OTHER_END, 7}}


def test_without_stop_tokens_the_grammar_goes_on_as_long_as_it_can_and_then_ends(
    constraints: RowConstraints,
) -> None:
    start(constraints, 0, grammar=ABC, output="ab", stop_token_ids=())
    assert allowed(constraints, item(0, 2)) == {0: set(b"abc")}
    assert advance(constraints, 0, ord("c")) == [ord("c")]
    assert advance(constraints, 0, 77) == [GRAMMAR_ENDED_TOKEN]


def test_a_stop_token_ends_without_asking_the_grammar(constraints: RowConstraints) -> None:
    start(constraints, 0, grammar=ABC, output="ab", stop_token_ids=(7,))
    assert advance(constraints, 0, 7) == [7]


def test_a_failed_row_stays_failed_and_its_matcher_stays_where_it_was(
    constraints: RowConstraints,
) -> None:
    start(constraints, 0, grammar=ABC)
    assert advance(constraints, 0, -1) == [-1]
    assert allowed(constraints, item(0)) == {0: set(b"abc")}


@pytest.mark.parametrize("index", [0, 2])
def test_a_forced_token_is_all_that_is_allowed(constraints: RowConstraints, index: int) -> None:
    start(constraints, 0)
    start(constraints, 1, min_tokens=9)
    found = allowed(constraints, item(0, index, forced=299), item(1, index, forced=END))
    assert found == {0: {299}, 1: {END}}


def test_a_forced_token_moves_the_grammar_or_breaks_it(constraints: RowConstraints) -> None:
    for row, forced, settled in ((0, ord("b"), ord("b")), (1, ord("x"), GRAMMAR_FAILED_TOKEN)):
        start(constraints, row, grammar=ABC)
        step = constraints.begin([item(row, 0, forced)])
        assert step is not None
        assert step.masks().words.astype(bool).sum() == 1
        assert step.settle([forced]) == [settled]
    assert allowed(constraints, item(0, 1)) == {0: set(b"abc")}


def test_a_bad_grammar_is_refused_before_a_row_has_it(constraints: RowConstraints) -> None:
    constraints.check(ABC)
    with pytest.raises(InvalidGrammar):
        constraints.check(GrammarSpec("start: ("))


def test_a_grammar_before_the_vocabulary_is_our_mistake() -> None:
    constraints = RowConstraints(1, VOCAB)
    with pytest.raises(InternalError, match="vocabulary"):
        constraints.check(ABC)
    constraints.close()


def test_a_row_whose_grammar_cannot_be_compiled_fails_alone(constraints: RowConstraints) -> None:
    start(constraints, 0, grammar=GrammarSpec("start: ("))
    start(constraints, 1, grammar=ABC)
    step = constraints.begin([item(0), item(1), item(2)])
    assert step is not None
    step.masks()
    assert step.settle([5, ord("a"), 7]) == [GRAMMAR_FAILED_TOKEN, ord("a"), 7]
    start(constraints, 0)
    assert constraints.begin([item(0)]) is None


def test_a_checked_grammar_is_never_compiled_again(
    constraints: RowConstraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = constraints.check(ABC)
    assert held.lark == ABC.lark
    for number in range(40):  # Far more than are kept of those that nobody holds.
        constraints.check(GrammarSpec(f"start: /x{{{number + 1}}}/"))

    def refuse(*_: object) -> None:
        raise AssertionError("compiled in the engine's thread")

    monkeypatch.setattr(GrammarCompiler, "_compile", refuse)
    for output in ("", "a", "ab"):
        start(constraints, 0, output, grammar=held)
        expected = set(b"abc") if len(output) < 2 else {*b"abc", END, OTHER_END}
        assert allowed(constraints, item(0, len(output))) == {0: expected}


def test_a_vocabulary_of_another_size_than_the_models(constraints: RowConstraints) -> None:
    """Ids behind the model's have no logits; the model's behind the tokenizer's have no text."""
    constraints.use_vocabulary([*TOKENS, *[b"a"] * 100], [END, 399], [END, 399])
    start(constraints, 0, grammar=ABC)
    assert allowed(constraints, item(0)) == {0: {*b"abc", *range(258, 300)}}
    constraints.use_vocabulary(TOKENS[:98], [], [])
    start(constraints, 0, grammar=ABC)
    assert allowed(constraints, item(0)) == {0: {ord("a")}}
