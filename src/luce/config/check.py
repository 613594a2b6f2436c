"""Rules that no single option can check: names, devices, addresses. Pure; touches no file."""

from __future__ import annotations

import ipaddress
import re

from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.errors import UsageError

RESERVED_NAME = "auto"
"""A request for this model name means "any": no model may carry it."""

_DEVICE = re.compile(r"cpu(?::[0-9]{1,3})?|(?:cuda|hip):[0-9]{1,3}")
_DOTTED_NUMBERS = re.compile(r"[0-9.]+")


def check(config: ServerConfig) -> None:
    """Check one whole configuration.

    Raises:
        UsageError: names the block or both blocks, and what to write instead.
    """
    if not config.models:
        raise UsageError("no model given: write its path first, or --model PATH, or --demo")
    _check_listener(config.listener)
    for number, model in enumerate(config.models, start=1):
        _check_model(number, model)
    _check_names_unique(config.models)


def block_label(number: int, model: ModelConfig) -> str:
    """How messages name a block."""
    return f"block {number} ({model.name or model.path.name})"


def _check_listener(listener: ListenerConfig) -> None:
    host = listener.host
    if not host or not host.isascii() or not host.isprintable() or " " in host:
        raise UsageError(f"--host: {host!r} is no address")
    if _DOTTED_NUMBERS.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise UsageError(f"--host: {host!r} is no IPv4 address") from error


def _check_model(number: int, model: ModelConfig) -> None:
    label = block_label(number, model)
    if not model.name or model.name != model.name.strip() or not model.name.isprintable():
        raise UsageError(
            f"{label}: --model-name {model.name!r} must be printable, not empty and without "
            "blanks around it"
        )
    if model.name.casefold() == RESERVED_NAME:
        raise UsageError(
            f"{label}: --model-name {model.name} is reserved: in a request it means any model"
        )
    if not _DEVICE.fullmatch(model.target_device):
        raise UsageError(
            f"{label}: --target-device {model.target_device!r} is none of cpu, cpu:N, cuda:N, hip:N"
        )


def _check_names_unique(models: tuple[ModelConfig, ...]) -> None:
    first_with: dict[str, int] = {}
    for number, model in enumerate(models, start=1):
        other = first_with.setdefault(model.name.casefold(), number)
        if other != number:
            raise UsageError(
                f"--model-name must be unique: {block_label(other, models[other - 1])} and "
                f"{block_label(number, model)} have the same one"
            )
