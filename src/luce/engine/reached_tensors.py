"""Which tensors objects hold, through attributes, containers and functions."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator

import torch

_PACKAGE = "luce."


def reached_tensors(roots: Iterable[object], device: torch.device) -> Iterator[torch.Tensor]:
    """All tensors with memory on a device that objects reach, each once.

    Args:
        roots: objects of ours, containers, functions.
        device: of the tensors; others' are left out.
    """
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if not isinstance(each, torch.Tensor):
            waiting.extend(_reached_from(each))
        elif each.device == device and each.untyped_storage().nbytes():
            yield each


def _reached_from(each: object) -> Iterable[object]:
    """What an object of ours, a container or a function holds."""
    if isinstance(each, dict):
        return list(each.values())
    if isinstance(each, (list, tuple, set, frozenset)):
        return list(each)
    if isinstance(each, functools.partial):
        return [each.func, *each.args, *each.keywords.values()]
    if isinstance(each, types.MethodType):
        return [each.__self__]
    if isinstance(each, types.FunctionType):
        return [cell.cell_contents for cell in each.__closure__ or ()]
    if isinstance(each, type) or not type(each).__module__.startswith(_PACKAGE):
        return []
    held = list(vars(each).values()) if hasattr(each, "__dict__") else []
    names = (name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ()))
    held += [getattr(each, name) for name in names if hasattr(each, name)]
    if dataclasses.is_dataclass(each):
        held += [getattr(each, field.name) for field in dataclasses.fields(each)]
    return held
