"""A small working byte-level BPE vocabulary, in both spellings: GGUF keys and tokenizer.json.

Ids 0..2 are the special tokens, 3..258 the bytes, then one token per merge; rows of the
embedding beyond that are padding, as in real checkpoints.
"""

from __future__ import annotations

from typing import Any

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (ENDOFTEXT, IM_START, IM_END)
ENDOFTEXT_ID, IM_START_ID, IM_END_ID = 0, 1, 2

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Each word is reached by merging its letters from the left, so that longer prompts use merges.
_MERGED_WORDS = ("Ġthe", "Ġis", "Ġof", "Ġand", "Ġcapital", "Ġyou", "ing", "er", "user", "What")

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_characters() -> list[str]:
    """The printable character standing for each byte 0..255 in a byte-level vocabulary.

    Source: GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the other bytes
    are U+0100 onwards in byte order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def _merge_pairs() -> list[tuple[str, str]]:
    pairs: dict[tuple[str, str], None] = {}
    for word in _MERGED_WORDS:
        for end in range(1, len(word)):
            pairs.setdefault((word[:end], word[end]))
    return list(pairs)


MERGES: list[tuple[str, str]] = _merge_pairs()
TOKENS: list[str] = list(
    dict.fromkeys([*SPECIAL_TOKENS, *byte_characters(), *(a + b for a, b in MERGES)])
)
NUM_TOKENS = len(TOKENS)


def tokenizer_json(pre: str) -> dict[str, Any]:
    """The tokenizer as the `tokenizers` library stores it.

    Args:
        pre: the split, "smollm" or "qwen2" as in `tokenizer.ggml.pre`.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if pre == "smollm":
        split: dict[str, Any] = {"type": "Digits", "individual_digits": True}
    else:
        split = {
            "type": "Split",
            "pattern": {"Regex": QWEN2_SPLIT},
            "behavior": "Isolated",
            "invert": False,
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, text in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, {**byte_level, "use_regex": pre == "smollm"}],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(TOKENS)},
            "merges": [list(pair) for pair in MERGES],
        },
    }
