"""Detokenizer: token ids to text, as they come, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from luce.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of one output, fed in any portions; the portions do not change the text.

    Bytes of an unfinished character are held until the rest comes. `silent_ids` and control
    tokens other than `voiced_ids` produce no text. Bytes that cannot be UTF-8 at all become
    U+FFFD, as in the reference. One space before the first word is taken off where the vocabulary
    adds one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        silent_ids: Iterable[int] = (),
        voiced_ids: Iterable[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._silent_ids = tokenizer.special_ids.difference(voiced_ids).union(silent_ids)
        self._unfinished = b""
        self._at_start = tokenizer.leading_space

    def feed(self, token_ids: Iterable[int]) -> str:
        """The characters these tokens complete; may be empty."""
        data = self._unfinished
        for token_id in token_ids:
            if token_id not in self._silent_ids:
                data += self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        text, num_used = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[num_used:]
        return text

    @property
    def is_inside_character(self) -> bool:
        """Whether bytes of an unfinished character are held."""
        return bool(self._unfinished)

    def token_bytes(self, token_id: int) -> bytes:
        """All bytes of a token, whether or not they are shown."""
        return self._tokenizer.token_bytes(token_id)

    def flush(self) -> None:
        """The output has ended: forget the bytes of a character that was cut off."""
        self._unfinished = b""
