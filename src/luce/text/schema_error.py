"""SchemaError: why output cannot be held to a schema, and where in it."""

from __future__ import annotations


class SchemaError(Exception):
    """A schema cannot be followed.

    Args:
        path: keywords, names and indexes from the root to what is wrong.
        why: a clause without a full stop.

    Attributes:
        is_limit: it is too large, not wrong.
    """

    def __init__(self, path: tuple[str, ...], why: str, *, is_limit: bool = False) -> None:
        super().__init__(why)
        self.path = path
        self.why = why
        self.is_limit = is_limit
