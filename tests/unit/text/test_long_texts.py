"""Texts far longer than any context: refused early, and cut without changing a token."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luce.errors import ContextLengthExceeded, InvalidRequest
from luce.text import tokenizer as tokenizer_module
from luce.text.bundle import TextBundle
from luce.text.call import ChatMessage, GenerationCall, ToolSpec

WORDS = "The quick  brown fox, 42 jumps\n over 7 lazy_dogs; naïve 日本 text 9 9.\n"


@pytest.fixture(scope="module")
def bundle(demo_model: Path) -> TextBundle:
    return TextBundle.load(demo_model)


def test_cutting_changes_no_token(bundle: TextBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    text = WORDS * 40
    whole = bundle.tokenizer.encode_with_specials(text)
    monkeypatch.setattr(tokenizer_module, "PORTION_CHARACTERS", 50)
    assert bundle.tokenizer.encode_with_specials(text, limit=len(whole)) == whole


def test_encoding_ends_at_the_limit(bundle: TextBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = bundle.tokenizer._encode

    def count(backend: object, text: str) -> list[int]:
        encoded.append(len(text))
        return encode(backend, text)  # type: ignore[arg-type]

    monkeypatch.setattr(bundle.tokenizer, "_encode", count)
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens.* at most 8192"):
        bundle.tokenizer.encode_with_specials(WORDS * 10_000, limit=8192)
    assert sum(encoded) < 200_000 < len(WORDS * 10_000)


def test_one_endless_word_is_refused_unread(bundle: TextBundle) -> None:
    call = GenerationCall(model=None, messages=(ChatMessage("user", "x" * 30_000_000),))
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens"):
        bundle.prepare(call, 8192)


def test_no_limit_counts_to_the_end(bundle: TextBundle) -> None:
    ids = bundle.tokenizer.encode_with_specials(WORDS * 2000)
    assert len(ids) > 8192


@pytest.mark.parametrize("unit", ["<|im_", "<|im_end|>", "word "])
def test_far_too_long_a_conversation_is_refused_before_it_is_rendered(
    bundle: TextBundle, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> str:
        raise AssertionError("rendered")

    monkeypatch.setattr(type(bundle.template), "render", never)
    text = unit * (31_000_000 // len(unit))
    longest = max(map(len, bundle.tokenizer._backend.get_vocab()))
    message = ChatMessage("user", text)
    call = GenerationCall(model=None, messages=(message,))
    at_least = (len(text) + len("usercontentrole")) // longest
    with pytest.raises(ContextLengthExceeded, match=f"at least {at_least} tokens.* at most 8192"):
        bundle.prepare(call, 8192)
    many = tuple(ChatMessage("user", unit * 1000) for _ in range(5000))
    with pytest.raises(ContextLengthExceeded):
        bundle.prepare(GenerationCall(model=None, messages=many), 8192)


def test_a_raw_prompt_is_refused_before_it_is_cut(bundle: TextBundle) -> None:
    call = GenerationCall(model=None, messages=(), raw_prompts=("<|im_" * 6_000_000,))
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens"):
        bundle.prepare(call, 8192)


def test_offered_tools_count_and_hidden_ones_do_not(bundle: TextBundle) -> None:
    tool = ToolSpec("f", "x" * 1_000_000)
    asked = GenerationCall(model=None, messages=(ChatMessage("user", "hi"),), tools=(tool,))
    with pytest.raises(ContextLengthExceeded):
        bundle.prepare(asked, 8192)
    assert bundle.prepare(replace(asked, tool_choice="none"), 8192).num_tokens < 100


def test_long_texts_are_encoded_as_short_ones_are(
    bundle: TextBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WORDS * 100
    whole = bundle.tokenizer.encode(text)
    monkeypatch.setattr(tokenizer_module, "_LONG_TEXT", 10**9)
    assert bundle.tokenizer.encode(text) == whole


def test_encoding_a_long_text_holds_up_no_other_thread(bundle: TextBundle) -> None:
    """Who holds the interpreter's lock for long lets another thread get on a few times at most."""
    num_turns, begun, is_over = [0], threading.Event(), threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            begun.set()
            time.sleep(0.001)
            num_turns[0] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert begun.wait(60)
    before = num_turns[0]
    bundle.tokenizer.encode("<|im_" * 200_000)
    meanwhile = num_turns[0] - before
    is_over.set()
    watcher.join()
    assert meanwhile >= 10


@pytest.mark.parametrize("depth", [500, 700, 900, 970])
def test_deep_variables_beside_guarded_texts_are_refused(bundle: TextBundle, depth: int) -> None:
    deep: Any = "<|im_end|>"
    for _ in range(depth):
        deep = [deep]
    message = ChatMessage("user", "<|im_end|>")
    call = GenerationCall(model=None, messages=(message,), template_kwargs={"a": deep})
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        bundle.prepare(call, 8192)
