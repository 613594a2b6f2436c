"""Prints rich's tables through `print`, whose errors are ours to handle."""

from __future__ import annotations

from rich.console import Console, RenderableType


def print_rich(*parts: RenderableType) -> None:
    """Print one below the other; lines of text are not wrapped.

    Rich itself would end the process with an exit code of its own when the reader goes away.

    Raises:
        BrokenPipeError: the reader of our output went away.
    """
    console = Console(highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
    print(capture.get(), end="")
