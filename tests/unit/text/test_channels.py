"""Which text is reasoning."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from luce.text.channels import (
    GEMMA,
    MISTRAL,
    SEED,
    THINK,
    ChannelSpec,
    ChannelSplitter,
    ends_in_reasoning,
    find_channels,
)

TEMPLATES = Path(__file__).parent / "templates"


def split(
    text: str, spec: ChannelSpec = THINK, *, in_reasoning: bool = False, in_call: bool = False
) -> list[tuple[str, str]]:
    splitter = ChannelSplitter(spec, in_reasoning=in_reasoning, is_verbatim=lambda: in_call)
    pieces = [*splitter.feed(text), *splitter.flush()]
    return [
        (channel[0], "".join(piece.text for piece in group))
        for channel, group in groupby(pieces, key=lambda piece: piece.channel)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nhm\n</think>\n\nyes", [("r", "hm"), ("c", "yes")]),
        ("\n <think>hm</think>yes\n", [("c", "\n "), ("r", "hm"), ("c", "yes\n")]),
        ("<think></think>yes", [("c", "yes")]),
        ("<think>\n\n</think>\n\n", []),
        ("<think><think>hm</think>", [("r", "hm")]),
        ("<think>a <think> b</think>", [("r", "a <think> b")]),
        ("<think>cut", [("r", "cut")]),
        ("<think>cut </thi", [("r", "cut </thi")]),
        ("a</think>b", [("c", "ab")]),
        ("<think>a</think>b</think>c", [("r", "a"), ("c", "bc")]),
        ("yes\n<think>more</think>!", [("c", "yes\n"), ("r", "more"), ("c", "!")]),
        ("The <think> tag", [("c", "The <think> tag")]),
        ("<think>a</think>    code", [("r", "a"), ("c", "    code")]),
    ],
)
def test_think_tags(text: str, expected: list[tuple[str, str]]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hm</think>yes", [("r", "hm"), ("c", "yes")]),
        ("\n\nhm\n\nha\n</think>", [("r", "hm\n\nha")]),
        ("\n<think>\nhm</think>yes", [("r", "hm"), ("c", "yes")]),
        ("  hm", [("r", "  hm")]),
    ],
)
def test_a_prompt_that_opens_reasoning(text: str, expected: list[tuple[str, str]]) -> None:
    assert split(text, in_reasoning=True) == expected


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        (GEMMA, "<|channel>thought\nhm<channel|>yes", [("r", "hm"), ("c", "yes")]),
        (GEMMA, "a <|channel>hm<channel|>", [("c", "a "), ("r", "hm")]),
        (GEMMA, "<|channel>thought\n<channel|>yes", [("c", "yes")]),
        (GEMMA, "<|channel>", []),
        (MISTRAL, "[THINK]hm[/THINK]yes [/THINK]", [("r", "hm"), ("c", "yes ")]),
        (SEED, "<seed:think>hm</seed:think>yes", [("r", "hm"), ("c", "yes")]),
        (ChannelSpec(("<a>", "<b>"), "</a>"), "<b>hm</a>yes", [("r", "hm"), ("c", "yes")]),
    ],
)
def test_other_tags(spec: ChannelSpec, text: str, expected: list[tuple[str, str]]) -> None:
    assert split(text, spec) == expected


def test_in_a_call_tags_are_text_and_white_space_stays() -> None:
    text = ' {"a": "<think>\n</think>"} \n'
    assert split(text, in_call=True) == [("c", text)]


def test_reasoning_ends_in_a_call_too() -> None:
    assert split("a \n</think>b ", in_reasoning=True, in_call=True) == [("r", "a \n"), ("c", "b ")]


def test_whether_a_piece_is_verbatim_is_asked_when_it_is_due() -> None:
    taken: list[str] = []
    splitter = ChannelSplitter(
        THINK, in_reasoning=False, is_verbatim=lambda: "".join(taken).endswith("open ")
    )
    taken.extend(piece.text for piece in splitter.feed("open <think>a\n</think>"))
    assert "".join(taken) == "open <think>a\n"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<think>\\n' }}", THINK),
        ("{% set c = content.split('</think>')[-1] %}", THINK),
        ("{{ '<|channel>thought' }}", GEMMA),
        ("[THINK]", MISTRAL),
        ("{{ '<seed:think>' }}", SEED),
        ("{{ messages }}", None),
        ((TEMPLATES / "qwen3.jinja").read_text(), THINK),
        ((TEMPLATES / "llama3.jinja").read_text(), None),
    ],
)
def test_the_template_tells(template: str, expected: ChannelSpec | None) -> None:
    assert find_channels(template) is expected


@pytest.mark.parametrize(
    ("spec", "prompt", "expected"),
    [
        (THINK, "<|im_start|>assistant\n<think>\n", True),
        (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        (THINK, "<think>x", False),
        (GEMMA, "<|channel>thought\n", True),
        (GEMMA, "<|channel>", True),
    ],
)
def test_where_an_answer_begins(spec: ChannelSpec, prompt: str, expected: bool) -> None:
    assert ends_in_reasoning(spec, prompt) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>hm</think>\n{}", [("r", "hm"), ("c", "{}")]),
        ("a</think>b", [("c", "a</think>b")]),
        ("<think>hm</think>a</think>\n<think>b", [("r", "hm"), ("c", "a</think>\n<think>b")]),
        ("<think>hm</think><think>", [("r", "hm"), ("c", "<think>")]),
        ("x\n<think>y</think>", [("c", "x\n<think>y</think>")]),
        ("\n<think>y</think>z", [("c", "\n"), ("r", "y"), ("c", "z")]),
    ],
)
def test_an_answer_that_reasons_once(text: str, expected: list[tuple[str, str]]) -> None:
    """A grammar tells where reasoning stands, so that tags in the answer are text."""
    splitter = ChannelSplitter(
        THINK, in_reasoning=False, is_verbatim=lambda: False, reasons_once=True
    )
    pieces = [*splitter.feed(text), *splitter.flush()]
    assert [
        (channel[0], "".join(piece.text for piece in group))
        for channel, group in groupby(pieces, key=lambda piece: piece.channel)
    ] == expected
