"""Tokenizers from a Hugging Face `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from luce.errors import ModelFileError
from luce.loaders.json_file import MAX_JSON_BYTES
from luce.loaders.mapped import check_is_file
from luce.text.spelling import SPACE_MARK, Spelling
from luce.text.tokenizer import ControlToken, Tokenizer, TokenizerParts

# How Metaspace is told to prefix a space at the beginning of a text only. `tokenizers` writes
# JSON without blanks, and a quote inside a vocabulary entry is escaped, so this is no entry.
_PREFIX_FIRST = '"prepend_scheme":"first"'
_PREFIX_NEVER = '"prepend_scheme":"never"'


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a `tokenizer.json`; added tokens marked special become control tokens.

    Raises:
        ModelFileError: the file is missing, damaged, or decodes in a way we do not serve.
    """
    backend = _read(path)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # leaves special tokens' texts in plain text alone
    added = backend.get_added_tokens_decoder()
    decoder = b"" if backend.decoder is None else bytes(backend.decoder.__getstate__())
    spelling = _spelling(decoder, path)
    return Tokenizer(
        TokenizerParts(
            backend=backend,
            spelling=spelling,
            control=tuple(
                ControlToken(index, token.content, token.lstrip, token.rstrip)
                for index, token in added.items()
                if token.special
            ),
            literal_ids=frozenset(index for index, token in added.items() if not token.special),
            vocab_size=_vocab_size(backend, added),
            leading_space=spelling is Spelling.SENTENCEPIECE and _strips_first_space(decoder),
            backend_after_markup=_without_prefix(backend),
        )
    )


def _read(path: Path) -> tokenizers.Tokenizer:
    check_is_file(path, limit=MAX_JSON_BYTES)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelFileError(f"{path}: not a tokenizer we can read: {error}") from error


def _spelling(decoder: bytes, path: Path) -> Spelling:
    text = decoder.decode()
    if '"ByteLevel"' in text:
        return Spelling.BYTE_LEVEL
    if SPACE_MARK in text:
        return Spelling.SENTENCEPIECE
    raise ModelFileError(
        f"{path}: its decoder is neither ByteLevel nor SentencePiece ({SPACE_MARK} for space)"
    )


def _strips_first_space(decoder: bytes) -> bool:
    stages = json.loads(decoder)
    stages = stages.get("decoders", [stages])
    return any(
        (stage["type"] == "Strip" and stage.get("start", 0) > 0)
        or (stage["type"] == "Metaspace" and stage.get("prepend_scheme") != "never")
        for stage in stages
    )


def _vocab_size(backend: tokenizers.Tokenizer, added: dict[int, tokenizers.AddedToken]) -> int:
    return max(int(backend.get_vocab_size()), max(added, default=-1) + 1)


def _without_prefix(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer | None:
    """The same tokenizer for text in the middle, where the prefix space is for beginnings."""
    state = b"" if backend.pre_tokenizer is None else bytes(backend.pre_tokenizer.__getstate__())
    if _PREFIX_FIRST not in state.decode():
        return None
    middle = tokenizers.Tokenizer.from_str(backend.to_str().replace(_PREFIX_FIRST, _PREFIX_NEVER))
    middle.encode_special_tokens = True
    return middle
