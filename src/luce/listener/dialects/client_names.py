"""Errors found behind a dialect name fields of `GenerationCall`; clients know their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from luce.errors import ApiError
from luce.text.call import GenerationCall


@contextmanager
def in_clients_words(call: GenerationCall) -> Iterator[None]:
    """Around what is done with a call: the `param` of an error becomes the client's field."""
    try:
        yield
    except ApiError as error:
        error.param = client_param(error.param, call.client_names)
        raise


def client_param(param: str | None, names: Mapping[str, str]) -> str | None:
    """The client's path.

    Args:
        param: our path.
        names: ours to the client's; the longest that begins `param` counts.
    """
    if param is None:
        return None
    found = [name for name in names if param.startswith(name) and _ends_at(param, len(name))]
    if not found:
        return param
    ours = max(found, key=len)
    return names[ours] + param[len(ours) :]


def _ends_at(param: str, length: int) -> bool:
    """Whether a step of the path ends there: `tools[1]` does not begin `tools[10]`."""
    return param[length : length + 1] in ("", ".", "[")
