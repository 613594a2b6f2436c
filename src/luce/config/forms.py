"""Forms of single texts: a model's name, an address. Pure; touches no file and no network."""

from __future__ import annotations

import ipaddress
import re

from luce.config.option import BadValue
from luce.units import parse_bytes

RESERVED_NAME = "auto"
"""A request for this model name means "any": no model may carry it."""

ANY_ORIGIN = "*"
"""Stands for every origin."""
OPAQUE_ORIGIN = "null"
"""What browsers say for pages that have no origin: files, sandboxed frames."""

_DOTTED_NUMBERS = re.compile(r"[0-9.]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._~-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_VISIBLE = re.compile(r"[!-~]+")
_MAX_KEY_CHARS = 1024


def check_model_name(text: str) -> None:
    """A name that can be printed, typed and told from "any model".

    Raises:
        BadValue: blanks around it, control characters, or the reserved name.
    """
    if text != text.strip() or not text.isprintable():
        raise BadValue(f"{text!r} must be printable and without blanks around it")
    if text.casefold() == RESERVED_NAME:
        raise BadValue(f"{text!r} is reserved: in a request it means any model")


def snapshot_bytes(text: str) -> int | None:
    """Host memory for cached prefixes; None: the worker finds out how much.

    Raises:
        BadValue: it is neither "auto" nor a size.
    """
    if text == "auto":
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise BadValue(f"{error}, or auto") from error


def check_host(text: str) -> None:
    """An address or a host name; whether it exists is found out by binding it.

    Raises:
        BadValue: it can be neither.
    """
    if not text.isascii() or not text.isprintable() or " " in text:
        raise BadValue(f"{text!r} is no address")
    if _DOTTED_NUMBERS.fullmatch(text):
        try:
            ipaddress.IPv4Address(text)
        except ValueError as error:
            raise BadValue(f"{text!r} is no IPv4 address") from error


def check_api_key(text: str) -> None:
    """A key that fits into one word of a header. Messages do not repeat it.

    Raises:
        BadValue: it does not.
    """
    if not _VISIBLE.fullmatch(text):
        raise BadValue("a key is made of visible ASCII characters, without blanks")
    if len(text) > _MAX_KEY_CHARS:
        raise BadValue(f"a key has at most {_MAX_KEY_CHARS} characters")


def check_origin(text: str) -> None:
    """An origin as browsers send it.

    Raises:
        BadValue: it has a path, a blank, a capital letter or a comma, or no scheme.
    """
    if text not in (ANY_ORIGIN, OPAQUE_ORIGIN) and not _ORIGIN.fullmatch(text):
        raise BadValue(
            f"{text!r} is no origin: write one scheme://host or scheme://host:port in small "
            "letters, without a path, or *"
        )
