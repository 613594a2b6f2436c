"""ModelCard: what is recommended for one model: output lengths, thinking budgets, sampling.

A card is a JSON file named after its model. Cards of a few models come with luce; a folder of
others may be given, whose cards win.
"""

from __future__ import annotations

import errno
import logging
import math
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from luce.errors import ModelFileError
from luce.loaders.json_file import read_json_object
from luce.loaders.mapped import unreadable
from luce.text.reasoning import EFFORTS, Effort
from luce.units import cut

log = logging.getLogger(__name__)

PACKAGED_CARDS = Path(__file__).with_name("model_cards")

_BLANK = re.compile(r"[ \t_]")
_DROPPED = re.compile(r"[^a-z0-9.-]")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A card, checked. Attributes without comment are the card's keys; None: not there.

    Attributes:
        origin: where it is from, for people.
        max_tokens: recommended output, reasoning included.
        complex_problem_max_tokens: the same for hard problems; at least `max_tokens`.
        hard_limit_reply_budget: tokens kept for the reply when reasoning is closed by force.
        thinking_marker: what ends reasoning.
        thinking_terminator_hint: what ends it by force, word for word.
        sampling: recommended parameters.
        effort_tiers: reasoning tokens by effort; grow with it.
        document: the JSON, as it was.
    """

    origin: str
    max_tokens: int
    complex_problem_max_tokens: int | None = None
    hard_limit_reply_budget: int | None = None
    thinking_marker: str | None = None
    thinking_terminator_hint: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    effort_tiers: Mapping[Effort, int] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)


def card_stem(name: str) -> str:
    """The file name, without `.json`, of the card of a model by its own name."""
    return _DROPPED.sub("", _BLANK.sub("-", name.lower()))


def find_card(model_name: str, folder: Path | None = None) -> ModelCard | None:
    """The card of a model, if there is one.

    Args:
        model_name: the model's name by its own metadata.
        folder: looked into first.

    Raises:
        ModelFileError: there is no such folder, or the card is damaged; names the key.
    """
    if folder is not None:
        check_cards_folder(folder)
    stem = card_stem(model_name)
    if not stem.strip("."):
        return None
    for place in (folder, PACKAGED_CARDS):
        path = None if place is None else place / f"{stem}.json"
        # Whatever stands there is read: a card that is no file must not seem to be none.
        if path is not None and _is_there(path, bool):
            return read_card(path)
    return None


def check_cards_folder(folder: Path) -> None:
    """See that there is a folder.

    Raises:
        ModelFileError: there is none.
    """
    if not _is_there(folder, stat.S_ISDIR):
        raise ModelFileError(f"{folder}: there is no folder of model cards here")


def _is_there(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether a path is something of a kind; a name that is too long for a file is none.

    Raises:
        ModelFileError: nobody may look.
    """
    try:
        return is_kind(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise unreadable(path, error) from error


def read_card(path: Path) -> ModelCard:
    """Read a card.

    Raises:
        ModelFileError: it is no JSON object, or a key is missing or of no use; names the key.
    """
    return _CardReader(path, read_json_object(path)).read()


def tell_unknown_keys(card: ModelCard) -> None:
    """Log the keys of a card that nobody reads."""
    unknown = sorted(card.document.keys() - _KEYS)
    if unknown:
        extra = {"card": card.origin, "keys": ", ".join(unknown)}
        log.warning("model card has keys that mean nothing", extra=extra)


_Check = Callable[[float], bool]

_SAMPLING: Mapping[str, tuple[str, _Check]] = {
    "temperature": ("a number, 0 or more", lambda value: value >= 0),
    "top_p": ("a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": ("a whole number, 0 or more", lambda value: value >= 0 and value == int(value)),
    "min_p": ("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "presence_penalty": ("a number from -2 to 2", lambda value: -2 <= value <= 2),
    "repetition_penalty": ("a number above 0", lambda value: value > 0),
}
_KEYS = frozenset(
    {
        *("name", "source", "verified_at", "max_tokens", "complex_problem_max_tokens"),
        *("hard_limit_reply_budget", "thinking_marker", "thinking_terminator_hint", "sampling"),
        *("reasoning_effort_tiers", "download_urls", "notes"),
    }
)


class _CardReader:
    """The keys of one card, checked one by one."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self._path = path
        self._document = document

    def read(self) -> ModelCard:
        for key in ("name", "source", "verified_at"):
            if self._text(key) is None:
                self._fail(key, "is missing; it must be a text")
        max_tokens = self._count("max_tokens", lowest=1)
        if max_tokens is None:
            self._fail("max_tokens", "is missing; it must be a whole number, 1 or more")
        card = ModelCard(
            origin=self._origin(),
            max_tokens=max_tokens,
            complex_problem_max_tokens=self._count("complex_problem_max_tokens", lowest=1),
            hard_limit_reply_budget=self._count("hard_limit_reply_budget"),
            thinking_marker=self._text("thinking_marker"),
            thinking_terminator_hint=self._text("thinking_terminator_hint"),
            sampling=self._sampling(),
            effort_tiers=self._tiers(),
            document=self._document,
        )
        self._check_lengths(card)
        return card

    def _origin(self) -> str:
        if self._path.parent == PACKAGED_CARDS:
            return f"luce:{self._path.name}"
        return str(self._path)

    def _check_lengths(self, card: ModelCard) -> None:
        most = card.complex_problem_max_tokens
        if most is not None and most < card.max_tokens:
            self._fail("complex_problem_max_tokens", "must not be below max_tokens")
        reply = card.hard_limit_reply_budget
        if reply is not None and reply >= card.max_tokens:
            self._fail("hard_limit_reply_budget", "must be below max_tokens")

    def _sampling(self) -> dict[str, float]:
        given = self._object("sampling", _SAMPLING)
        for key, value in given.items():
            expected, is_right = _SAMPLING[key]
            if not _is_number(value) or not is_right(value):
                self._fail(f"sampling.{key}", f"must be {expected}")
        return {key: float(value) for key, value in given.items()}

    def _tiers(self) -> dict[Effort, int]:
        given = self._object("reasoning_effort_tiers", EFFORTS)
        tiers: dict[Effort, int] = {}
        for effort in EFFORTS:
            value = given.get(effort)
            if value is None:
                continue
            key = f"reasoning_effort_tiers.{effort}"
            if not _is_count(value):
                self._fail(key, "must be a whole number, 0 or more")
            if value < max(tiers.values(), default=0):
                self._fail(key, "must not be below the tiers of less effort")
            tiers[effort] = value
        return tiers

    def _object(self, key: str, known: Mapping[str, Any] | tuple[str, ...]) -> dict[str, Any]:
        """An object of known keys; keys that are null count as missing."""
        value = self._document.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._fail(key, "must be an object")
        unknown = sorted(value.keys() - set(known))
        if unknown:
            self._fail(f"{key}.{cut(unknown[0])}", f"is unknown; there are {', '.join(known)}")
        return {name: item for name, item in value.items() if item is not None}

    def _text(self, key: str) -> str | None:
        value = self._document.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            self._fail(key, "must be a text that is not empty")
        return value

    def _count(self, key: str, lowest: int = 0) -> int | None:
        value = self._document.get(key)
        if value is None:
            return None
        if not _is_count(value) or value < lowest:
            self._fail(key, f"must be a whole number, {lowest} or more")
        return int(value)

    def _fail(self, key: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self._path}: {key} {problem}")


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
