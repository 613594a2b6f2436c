"""ForcedClose: which tokens end reasoning early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luce.errors import ModelFileError
from luce.protocol.sampling import ReasoningBudget
from luce.text.budgets import BudgetOptions
from luce.text.channels import GEMMA, THINK, ChannelSpec
from luce.text.forced_close import forced_close
from luce.text.gguf_vocab import TokenType, build_tokenizer
from luce.text.model_card import ModelCard
from luce.text.reasoning import ReasoningRequest
from luce.text.thinking import Thinking, ThinkingOptions
from luce.text.tokenizer import Tokenizer

HINT = "\nEnough. </think>\n\n"


def text_of(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


def card(marker: str | None = None, hint: str | None = None) -> ModelCard:
    return ModelCard("c.json", 1000, thinking_marker=marker, thinking_terminator_hint=hint)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "</think>"),
        (card(), "</think>"),
        (card(marker="\n</think>"), "\n</think>"),
        (card(marker="\n</think>", hint=HINT), HINT),
        (card(hint=HINT), HINT),
    ],
)
def test_hint_then_marker_then_tag(tiny: Tokenizer, given: ModelCard | None, expected: str) -> None:
    close = forced_close(THINK, given, tiny)
    assert text_of(tiny, close.forced_ids) == expected
    assert text_of(tiny, close.close_ids) == "</think>"
    assert text_of(tiny, close.open_ids) == "<think>"
    assert len(close.open_ids) == 1  # a token of this vocabulary


def test_of_several_opening_tags_the_one_they_share(tiny: Tokenizer) -> None:
    close = forced_close(GEMMA, None, tiny)
    assert text_of(tiny, close.open_ids) == "<|channel>"
    assert text_of(tiny, close.forced_ids) == "<channel|>"


def test_no_space_is_put_before_it(spm: Tokenizer) -> None:
    spec = ChannelSpec(("hello",), "world")
    close = forced_close(spec, None, spm)
    assert text_of(spm, close.close_ids).endswith("world")
    assert forced_close(ChannelSpec(("abc",), "bc"), None, spm).close_ids == (
        forced_close(ChannelSpec(("hello",), "bc"), None, spm).close_ids
    )
    tags = ChannelSpec(("a</s>",), "<s>")
    assert text_of(spm, forced_close(tags, None, spm).close_ids) == "<s>"


@pytest.mark.parametrize("given", [card(marker="</thinking>"), card(hint="Enough.")])
def test_a_text_that_closes_nothing(tiny: Tokenizer, given: ModelCard) -> None:
    with pytest.raises(ModelFileError, match=r"c\.json: thinking_\w+ must hold </think>"):
        forced_close(THINK, given, tiny)


def test_a_budget(tiny: Tokenizer) -> None:
    close = forced_close(THINK, None, tiny)
    assert close.after(7) == ReasoningBudget(
        7, False, close.open_ids, close.close_ids, close.forced_ids, close.texts
    )


def test_what_to_look_for_in_the_text(tiny: Tokenizer) -> None:
    texts = forced_close(THINK, None, tiny).texts
    assert texts is not None
    assert (texts.opening, texts.close) == (b"<think>", b"</think>")
    found = set(texts.pieces.values())
    assert {b"<", b"/", b"th", b">", b" ", b"<think>", b"k"} - found <= {b"th"}
    for data in found - {b" "}:
        ends = data[-1:] == b"<" or data[:1] == b">"
        assert ends or data in b"<think></think>", data
    assert not {b"a", b"\n", b"hi there"} & found
    assert [text_of(tiny, ids) for ids in texts.half_ids] == [
        "</think>"[n:] for n in range(1, len("</think>"))
    ]


def test_tokens_that_hold_more_than_a_tag(tiny_vocab: dict[str, Any]) -> None:
    more = ["></", "think>\u010a", "<think>\u010a", "a<thinker"]
    tokens = [*tiny_vocab["tokens"], *more]
    types = [*tiny_vocab["token_type"], *[TokenType.USER_DEFINED] * len(more)]
    tokenizer = build_tokenizer({**tiny_vocab, "tokens": tokens, "token_type": types})
    texts = forced_close(THINK, None, tokenizer).texts
    assert texts is not None
    first = len(tiny_vocab["tokens"])
    assert {first, first + 1, first + 2} <= texts.pieces.keys()
    assert first + 3 not in texts.pieces


def test_a_tag_that_is_a_control_token_is_known_by_its_id(spm: Tokenizer) -> None:
    close = forced_close(ChannelSpec(("<s>",), "</s>"), None, spm)
    assert close.texts is None
    assert close.after(1).texts is None


def test_with_a_grammar_nothing_comes_behind_the_tag(tiny: Tokenizer) -> None:
    spoken = card(hint="Enough.</think>\n\nThe answer: ")
    close = forced_close(THINK, spoken, tiny)
    assert text_of(tiny, close.after(1).forced_ids).endswith("The answer: ")
    bound = replace(close, is_bound=True).after(1)
    assert text_of(tiny, bound.forced_ids) == "Enough.</think>"
    assert bound.texts is not None
    assert bound.texts.comes_first
    spaced = replace(forced_close(THINK, card(hint=HINT), tiny), is_bound=True)
    assert text_of(tiny, spaced.after(1).forced_ids) == HINT


class TestThinking:
    def thinking(self, tiny: Tokenizer, channels: ChannelSpec | None = THINK) -> Thinking:
        options = ThinkingOptions(budgets=BudgetOptions(think_max_tokens=9))
        return Thinking.of("Laguna XS", "laguna", channels, tiny, options)

    def test_card_and_operator(self, tiny: Tokenizer) -> None:
        thinking = self.thinking(tiny)
        assert thinking.card is not None
        assert thinking.budgets.think_max_tokens == 9
        defaults = thinking.with_recommended({"temperature": 0.1, "min_p": 0.2})
        assert defaults == {"temperature": 0.6, "top_p": 0.95, "top_k": 50, "min_p": 0.2}

    def test_only_who_asks_for_a_budget_is_closed(self, tiny: Tokenizer) -> None:
        thinking = self.thinking(tiny)
        asks = ReasoningRequest(True, has_envelope=True)
        for starts_open in (True, False):
            close = thinking.close_for(asks, starts_open)
            assert close is not None
            assert close.starts_open is starts_open
        assert thinking.close_for(ReasoningRequest(True), True) is None
        assert thinking.close_for(None, True) is None

    def test_a_model_without_tags(self, tiny: Tokenizer) -> None:
        thinking = self.thinking(tiny, None)
        assert thinking.close is None
        assert thinking.close_for(ReasoningRequest(True, has_envelope=True), False) is None

    def test_no_card(self, tiny: Tokenizer) -> None:
        thinking = Thinking.of("Nobody's", "llama", None, tiny, ThinkingOptions())
        assert thinking.card is None
        assert thinking.with_recommended({"top_k": 5}) == {"top_k": 5}
