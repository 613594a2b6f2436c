"""Tokenizers from the `tokenizer.ggml.*` keys of a GGUF file.

Byte-level BPE (`model = gpt2`) with the pre-tokenizer named by `pre`, and SentencePiece
(`model = llama`), whose merges are recovered from the scores. Where the reference tokenizers of
a family normalise (Qwen: NFC), so do we.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from luce.errors import ModelFileError
from luce.loaders.vocab_keys import VocabKeys
from luce.text.spelling import SPACE_MARK, Spelling
from luce.text.tokenizer import ControlToken, Tokenizer, TokenizerParts


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


MARKUP_TEXTS = frozenset(
    {
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<end_of_turn>",
        "<start_of_turn>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts that are markup even where a converter typed them as normal tokens."""

_PREFIX = "tokenizer.ggml."
MAX_TOKEN_CHARACTERS = 1024
"""The longest tokens in use have some hundred; scored ones are cut in every way there is."""

_CONTROL_ID_KEYS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")

# Sources of the split expressions: the tokenizer.json files of Llama 3, Qwen 2 and Qwen 3.5.
# Llama 3 takes up to three digits together, Qwen one; Qwen 3.5 counts combining marks as letters.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3_SPLIT = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN_2_SPLIT = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN_35_SPLIT = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)


def _split_by(expression: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(expression), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _split_digits_first() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


@dataclass(frozen=True, slots=True)
class _ByteLevelKind:
    """A family of byte-level vocabularies.

    `nfc`: text is normalised before it is split.
    `whole_words`: a word that is an entry is taken as such, whatever the merges say.
    """

    split: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False
    whole_words: bool = False


_SMOLLM = _ByteLevelKind(_split_digits_first)
_LLAMA_3 = _ByteLevelKind(lambda: _split_by(_LLAMA_3_SPLIT), whole_words=True)
_QWEN_2 = _ByteLevelKind(lambda: _split_by(_QWEN_2_SPLIT), nfc=True)
_QWEN_35 = _ByteLevelKind(lambda: _split_by(_QWEN_35_SPLIT), nfc=True)

_BYTE_LEVEL_KINDS: Mapping[str, _ByteLevelKind] = {
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "qwen35": _QWEN_35,
}
"""By `tokenizer.ggml.pre`, with the other names converters have given the same split."""


def build_tokenizer(keys: Mapping[str, Any]) -> Tokenizer:
    """Build a tokenizer from a file's `tokenizer.ggml.*` keys, as stored or prefix stripped.

    Raises:
        ModelFileError: a key is missing or damaged, or the kind of vocabulary is not served.
    """
    full = {_PREFIX + key.removeprefix(_PREFIX): value for key, value in keys.items()}
    vocab = VocabKeys(None, full, _PREFIX)
    model = vocab.optional_text("model")
    if model == "gpt2":
        return _build_byte_level(vocab)
    if model == "llama":
        return _build_sentencepiece(vocab)
    raise ModelFileError(
        f"tokenizer.ggml.model is {model!r}; supported: gpt2 (byte-level BPE), "
        "llama (SentencePiece)"
    )


def _build_byte_level(vocab: VocabKeys) -> Tokenizer:
    pre = vocab.optional_text("pre")
    kind = None if pre is None else _BYTE_LEVEL_KINDS.get(pre)
    if kind is None:
        raise ModelFileError(
            f"tokenizer.ggml.pre is {pre!r}; supported: {', '.join(_BYTE_LEVEL_KINDS)}"
        )
    entries = _Entries.read(vocab)
    backend = _bpe_backend(
        entries.plain_ids(),
        _merge_pairs(vocab.texts("merges")),
        ignore_merges=kind.whole_words,
    )
    if kind.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = kind.split()
    return Tokenizer(entries.parts(backend, Spelling.BYTE_LEVEL))


def _build_sentencepiece(vocab: VocabKeys) -> Tokenizer:
    entries = _Entries.read(vocab)
    prefix_space = vocab.flag("add_space_prefix", True)
    stored = vocab.texts("merges") if vocab.has("merges") else []
    merges = (
        _merge_pairs(stored) if stored else _merges_from_scores(entries, vocab.numbers("scores"))
    )
    backend = _bpe_backend(
        entries.plain_ids(),
        merges,
        unk_token=entries.unknown(),
        fuse_unk=True,
        byte_fallback=True,
    )
    space: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if prefix_space:
        space.insert(0, normalizers.Prepend(SPACE_MARK))
    backend.normalizer = normalizers.Sequence(space)
    return Tokenizer(entries.parts(backend, Spelling.SENTENCEPIECE, leading_space=prefix_space))


@dataclass(frozen=True, slots=True)
class _Entries:
    """The vocabulary's entries and what kind each is."""

    texts: list[str]
    types: list[int]
    control_ids: frozenset[int]

    @classmethod
    def read(cls, vocab: VocabKeys) -> _Entries:
        texts = vocab.texts("tokens")
        if not texts or len(max(texts, key=len)) > MAX_TOKEN_CHARACTERS:
            vocab.refuse(
                "tokens", f"it needs tokens of at most {MAX_TOKEN_CHARACTERS} characters each"
            )
        types = vocab.whole_numbers("token_type") if vocab.has("token_type") else []
        if types and len(types) != len(texts):
            raise ModelFileError(
                f"tokenizer.ggml.token_type has {len(types)} entries, "
                f"tokenizer.ggml.tokens has {len(texts)}"
            )
        types = types or [TokenType.NORMAL] * len(texts)
        control = {
            index
            for index, (text, kind) in enumerate(zip(texts, types, strict=True))
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
            or (kind == TokenType.NORMAL and text in MARKUP_TEXTS)
        }
        named = (vocab.token_id(key, len(texts)) for key in _CONTROL_ID_KEYS)
        control.update(token_id for token_id in named if token_id is not None)
        return cls(texts, types, frozenset(control))

    def plain_ids(self) -> dict[str, int]:
        """Entry → id without the control tokens, which plain text must not reach.

        The unknown token stays: an encoder without byte entries falls back to it.
        """
        return {
            text: index
            for index, (text, kind) in enumerate(zip(self.texts, self.types, strict=True))
            if kind == TokenType.UNKNOWN or index not in self.control_ids
        }

    def unknown(self) -> str | None:
        """The entry that stands for what cannot be encoded, if there is one."""
        pairs = zip(self.texts, self.types, strict=True)
        return next((text for text, kind in pairs if kind == TokenType.UNKNOWN), None)

    def parts(
        self, backend: tokenizers.Tokenizer, spelling: Spelling, *, leading_space: bool = False
    ) -> TokenizerParts:
        """Put the user-defined entries into the backend and sum up."""
        literal = [
            index
            for index, kind in enumerate(self.types)
            if kind == TokenType.USER_DEFINED and index not in self.control_ids
        ]
        backend.add_tokens(
            [tokenizers.AddedToken(self.texts[index], normalized=False) for index in literal]
        )
        return TokenizerParts(
            backend=backend,
            spelling=spelling,
            control=tuple(ControlToken(index, self.texts[index]) for index in self.control_ids),
            literal_ids=frozenset(literal),
            vocab_size=len(self.texts),
            leading_space=leading_space,
        )


def _bpe_backend(
    ids: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> tokenizers.Tokenizer:
    try:
        model = models.BPE(vocab=ids, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception for damaged merges
        raise ModelFileError(f"the vocabulary is damaged: {error}") from error
    return tokenizers.Tokenizer(model)


def _merge_pairs(merges: Iterable[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelFileError(f"tokenizer.ggml.merges holds {merge!r}, not two parts")
        pairs.append((left, right))
    return pairs


def _merges_from_scores(entries: _Entries, scores: list[float]) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary implies, best first.

    Every way to cut an entry into two others is a merge of the entry's score. Source: the order
    is the one of the reference conversion of SentencePiece models (score, then longer left
    part, then longer right part).

    Raises:
        ModelFileError: there is not one score for each token.
    """
    if len(scores) != len(entries.texts):
        raise ModelFileError(
            f"tokenizer.ggml.scores has {len(scores)} entries, "
            f"tokenizer.ggml.tokens has {len(entries.texts)}"
        )
    normal = {
        text
        for text, kind in zip(entries.texts, entries.types, strict=True)
        if kind == TokenType.NORMAL
    }
    cuts = [
        (index, cut)
        for index, text in enumerate(entries.texts)
        if text in normal
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    cuts.sort(key=lambda at: (-scores[at[0]], -at[1], at[1] - len(entries.texts[at[0]])))
    return [(entries.texts[index][:cut], entries.texts[index][cut:]) for index, cut in cuts]
