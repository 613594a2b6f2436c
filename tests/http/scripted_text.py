"""A small real text side that knows tags, and workers that write a given text with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luce.loaders.checkpoint import TextMetadata
from luce.testing import tiny_tokenizer
from luce.testing.fake_script import FakeScript
from luce.text.bundle import TextBundle
from luce.text.gguf_vocab import TokenType

TEMPLATES = Path(__file__).parents[1] / "unit" / "text" / "templates"
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
VOCAB_SIZE = 512


def tagged_text(markup: tuple[str, ...] = MARKUP, **changes: Any) -> Any:
    """A `TextBundle` with Qwen 3's template, its tags control tokens of a small vocabulary.

    Args:
        markup: texts of the control tokens.
        changes: other metadata.
    """
    tokens = [*tiny_tokenizer.TOKENS, *markup]
    types = [TokenType.NORMAL] * len(tokens)
    types[:3] = [TokenType.CONTROL] * 3
    types[-len(markup) :] = [TokenType.CONTROL] * len(markup)
    fields: dict[str, Any] = {
        "container": "gguf",
        "architecture": "qwen3",
        "name": "tiny",
        "context_length": 4096,
        "vocab_size": VOCAB_SIZE,
        "chat_template": (TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8"),
        "eos_token_ids": (tiny_tokenizer.IM_END_ID,),
        "bos_token": tiny_tokenizer.IM_START,
        "gguf_vocab": {
            "model": "gpt2",
            "pre": "smollm",
            "tokens": tokens,
            "token_type": types,
            "merges": [f"{left} {right}" for left, right in tiny_tokenizer.MERGES],
            "bos_token_id": tiny_tokenizer.IM_START_ID,
            "eos_token_id": tiny_tokenizer.IM_END_ID,
            "add_bos_token": False,
        },
        **changes,
    }
    return TextBundle.from_metadata(TextMetadata(**fields), Path("tiny.gguf"))


def writing(text: Any, answer: str, **fields: Any) -> FakeScript:
    """A worker that answers everything with this text.

    Args:
        text: the text side whose tokens it writes.
        answer: what it writes; the texts of control tokens are those tokens.
        fields: of the script.
    """
    reply = text.tokenizer.encode_with_specials(answer)
    return FakeScript(reply=reply, vocab_size=VOCAB_SIZE, **fields)
