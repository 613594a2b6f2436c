"""Forms of single texts: a model's name, an address. Pure; touches no file and no network."""

from __future__ import annotations

import ipaddress
import re

from luce.config.option import BadValue

RESERVED_NAME = "auto"
"""A request for this model name means "any": no model may carry it."""

_DOTTED_NUMBERS = re.compile(r"[0-9.]+")


def check_model_name(text: str) -> None:
    """A name that can be printed, typed and told from "any model".

    Raises:
        BadValue: blanks around it, control characters, or the reserved name.
    """
    if text != text.strip() or not text.isprintable():
        raise BadValue(f"{text!r} must be printable and without blanks around it")
    if text.casefold() == RESERVED_NAME:
        raise BadValue(f"{text!r} is reserved: in a request it means any model")


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
