"""Vocabularies the text tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.loaders.opening import read_text_metadata
from luce.testing import tiny_tokenizer
from luce.text.bundle import TextBundle
from luce.text.gguf_vocab import TokenType, build_tokenizer
from luce.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def demo_vocab(demo_model: Path) -> dict[str, Any]:
    """The `tokenizer.ggml.*` keys of the demo model, prefix stripped."""
    vocab = read_text_metadata(demo_model).gguf_vocab
    assert vocab is not None
    return {key.removeprefix("tokenizer.ggml."): value for key, value in vocab.items()}


@pytest.fixture(scope="session")
def demo_tokenizer(demo_vocab: dict[str, Any]) -> Tokenizer:
    return build_tokenizer(demo_vocab)


@pytest.fixture(scope="session")
def demo_bundle(demo_model: Path) -> TextBundle:
    return TextBundle.load(demo_model)


@pytest.fixture
def tiny_vocab() -> dict[str, Any]:
    """A small byte-level vocabulary with every byte, and `<think>` as user-defined token."""
    return make_tiny_vocab()


def make_tiny_vocab() -> dict[str, Any]:
    tokens = [*tiny_tokenizer.TOKENS, "<think>"]
    types = [TokenType.NORMAL] * len(tokens)
    types[:3] = [TokenType.CONTROL] * 3
    types[-1] = TokenType.USER_DEFINED
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": types,
        "merges": [f"{left} {right}" for left, right in tiny_tokenizer.MERGES],
        "bos_token_id": tiny_tokenizer.IM_START_ID,
        "eos_token_id": tiny_tokenizer.IM_END_ID,
        "add_bos_token": False,
    }


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return build_tokenizer(make_tiny_vocab())


@pytest.fixture(scope="session")
def spm_vocab() -> dict[str, Any]:
    """A SentencePiece vocabulary: unk, two control tokens, 256 bytes, pieces with scores."""
    pieces = ["▁", *"abcdehlortw", "he", "ll", "hell", "hello", "▁hello", "▁w", "or", "▁wor"]
    pieces += ["ld", "▁world", "ab", "abc", "bc", "▁a", "▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def spm(spm_vocab: dict[str, Any]) -> Tokenizer:
    return build_tokenizer(spm_vocab)
