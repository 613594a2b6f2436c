"""Tokenizer: text to token ids and token ids to bytes, for every vocabulary we read.

Control tokens (begin, end, turn markers) exist only for `encode_with_specials`, which the chat
template's output goes through. `encode` treats their texts as ordinary characters, so that what
a user writes can never close a turn. Tokens of type "user-defined" (`<think>`, runs of spaces)
are text the vocabulary always takes whole; both ways of encoding match them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import tokenizers

from luce.errors import ContextLengthExceeded, InvalidRequest
from luce.text.markup_pattern import markup_pattern
from luce.text.spelling import Spelling, piece_bytes

PORTION_CHARACTERS = 1 << 16
"""Encoding a portion takes some 30 ms and 10 MB."""

WORD_BORDER = re.compile(r"(?<=[^\W_]) (?=[^\W_])")

_MAX_COMPOSITION = 4
"""Characters that a normal form may make one of."""

_MAX_SEEN = 16384
"""Tokens whose bytes are remembered: a megabyte, and looking one up takes 8 µs."""

_LONG_TEXT = 4096
"""From here on a text is encoded without holding up the other threads."""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that is markup, never text.

    `eats_left`/`eats_right`: the markup swallows the white space beside it. A text of one
    character is not looked for in a template's output: `MarkupGuard` could not break it.
    """

    id: int
    text: str
    eats_left: bool = False
    eats_right: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What a loader found in a file; see `gguf_vocab` and `tokenizer_json`.

    Attributes:
        backend: encodes plain text; matches user-defined tokens, not control tokens.
        spelling: how the backend's vocabulary writes bytes.
        control: the control tokens.
        literal_ids: user-defined tokens, whose entry is the text itself in any spelling.
        vocab_size: number of tokens of the vocabulary, control ones included.
        leading_space: the first word of a text gets a space that decoding takes off again.
        backend_after_markup: encodes text that follows a control token where it differs from
            text at the beginning.
    """

    backend: tokenizers.Tokenizer
    spelling: Spelling
    control: tuple[ControlToken, ...]
    literal_ids: frozenset[int]
    vocab_size: int
    leading_space: bool = False
    backend_after_markup: tokenizers.Tokenizer | None = None


@dataclass(frozen=True, slots=True)
class _Markup:
    """Control tokens by text and by id, with the pattern that finds them."""

    by_text: Mapping[str, ControlToken]
    by_id: Mapping[int, ControlToken]
    pattern: re.Pattern[str] = field(repr=False)

    @classmethod
    def of(cls, control: tuple[ControlToken, ...]) -> _Markup:
        by_text = {token.text: token for token in control if len(token.text) > 1}
        return cls(by_text, {token.id: token for token in control}, markup_pattern(by_text))


class Tokenizer:
    """A vocabulary, ready to use. Never changes as far as can be seen; threads may share it."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._after_markup = parts.backend_after_markup or parts.backend
        self._spelling = parts.spelling
        self._literal_ids = parts.literal_ids
        self._markup = _Markup.of(parts.control)
        texts = (*parts.backend.get_vocab(), *self.control_texts)
        self._longest_token = max(map(len, texts), default=1)
        if parts.backend.normalizer is not None:
            self._longest_token *= _MAX_COMPOSITION
        self.vocab_size = parts.vocab_size
        self.leading_space = parts.leading_space
        self.special_ids = frozenset(self._markup.by_id)
        # Grows only; that threads may look a token up twice is harmless.
        self._seen_bytes: dict[int, bytes] = {}

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the control tokens, as a template writes them."""
        return tuple(self._markup.by_text)

    def control_id(self, text: str) -> int | None:
        """The id of the control token with this text, if there is one."""
        token = self._markup.by_text.get(text)
        return None if token is None else token.id

    def encode(self, text: str) -> list[int]:
        """Encode plain text; control token texts in it are ordinary characters.

        Bytes that the vocabulary has no entry for are left out, as the reference
        implementations do (SmolLM2 lacks 21 bytes, none of which begins a common character).

        Raises:
            InvalidRequest: the text holds half of a surrogate pair.
        """
        return self._encode(self._backend, text)

    def encode_with_specials(
        self, rendered: str, sentinel: str = "", limit: int | None = None
    ) -> list[int]:
        """Encode a chat template's output: control token texts in it become their tokens.

        Args:
            rendered: the template's output.
            sentinel: a character that `MarkupGuard` put into user text to break control token
                texts; it is taken out again before the text is encoded.
            limit: more tokens than this are not wanted. A body of 64 MiB would take half a
                minute and gigabytes to encode, only to be refused.

        Raises:
            InvalidRequest: the text holds half of a surrogate pair.
            ContextLengthExceeded: more than `limit` tokens; says how many there are at least.
        """
        ids: list[int] = []
        by_text = self._markup.by_text
        # Splitting at a group gives text, markup, text, markup, ..., text.
        pieces = self._markup.pattern.split(rendered)
        for index, piece in enumerate(pieces):
            if index % 2:
                ids.append(by_text[piece].id)
                continue
            if index and by_text[pieces[index - 1]].eats_right:
                piece = piece.lstrip()
            if index + 1 < len(pieces) and by_text[pieces[index + 1]].eats_left:
                piece = piece.rstrip()
            if sentinel:
                piece = piece.replace(sentinel, "")
            backend = self._after_markup if index else self._backend
            for portion in self._portions(piece, limit):
                ids += self._encode(backend, portion)
                if limit is not None and len(ids) > limit:
                    raise _too_long(len(ids), limit)
        return ids

    def _portions(self, text: str, limit: int | None) -> Iterator[str]:
        """The text, cut where a word begins, so that encoding can end at the limit.

        No token of a byte-level vocabulary reaches over such a place, so the tokens are the
        same; SentencePiece would add a space to each portion, and is not cut.
        """
        if limit is None or len(text) <= PORTION_CHARACTERS:
            yield text
            return
        self.check_length(len(text), limit)
        start = 0
        if not self.leading_space:
            for border in WORD_BORDER.finditer(text):
                if border.start() - start >= PORTION_CHARACTERS:
                    yield text[start : border.start()]
                    start = border.start()
        yield text[start:]

    def check_length(self, num_characters: int, limit: int) -> None:
        """Refuse a text that has too many tokens even if all of them were the longest there is.

        Raises:
            ContextLengthExceeded: more than `limit` tokens; says how many there are at least.
        """
        at_least = num_characters // self._longest_token
        if at_least > limit:
            raise _too_long(at_least, limit)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; control tokens give their text, unknown ids nothing."""
        data = self._seen_bytes.get(token_id)
        if data is None:
            data = self._look_up_bytes(token_id)
            if len(self._seen_bytes) < _MAX_SEEN:
                self._seen_bytes[token_id] = data
        return data

    def _look_up_bytes(self, token_id: int) -> bytes:
        control = self._markup.by_id.get(token_id)
        if control is not None:
            return control.text.encode()
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._literal_ids:
            return str(piece).encode()
        return piece_bytes(piece, self._spelling)

    @staticmethod
    def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
        if not text:
            return []
        try:
            if len(text) < _LONG_TEXT:
                ids: list[int] = backend.encode(text, add_special_tokens=False).ids
            else:  # Only batches are encoded without the interpreter's lock.
                ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise InvalidRequest(
                "The text is not valid Unicode: it holds half of a surrogate pair"
            ) from error
        return ids


def _too_long(at_least: int, limit: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"The prompt has at least {at_least} tokens; this model holds at most {limit}, prompt and "
        "output together. Shorten it."
    )
