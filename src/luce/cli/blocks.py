"""Splits a command line into ordered model blocks before any option is parsed.

`--max-concurrency 2` means something else before and after the second `--model`. An option
parser that collects values over the whole line loses whose value it is, so the line is cut at
each `--model` (and `--demo`) first. Pure: knows no option but those two, touches no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from luce.errors import UsageError

MODEL_FLAG = "--model"
DEMO_FLAG = "--demo"
_NAME_FLAG = "--model-name"


@dataclass(frozen=True, slots=True)
class Block:
    """One model and the options written after it.

    Attributes:
        number: 1 for the first block of the line.
        path: the model's path; None stands for the demo model.
        arguments: the block's other words, unparsed.
    """

    number: int
    path: str | None
    arguments: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it stands: `block 2`."""
        return f"block {self.number}"

    @property
    def label(self) -> str:
        """How messages name the block: `block 2 (small)`, by model name or else by file."""
        return f"{self.place} ({self._written_name() or self._file_name()})"

    def _file_name(self) -> str:
        return "demo" if self.path is None else PurePath(self.path).name or self.path

    def _written_name(self) -> str:
        name = ""
        for index, word in enumerate(self.arguments):
            flag, separator, value = word.partition("=")
            if flag == _NAME_FLAG:
                name = value if separator else "".join(self.arguments[index + 1 : index + 2])
        return name


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A split command line.

    Attributes:
        prelude: words before the first model; only listener options may stand there.
        blocks: the model blocks in the order written; may be empty.
    """

    prelude: tuple[str, ...]
    blocks: tuple[Block, ...]


def split_blocks(argv: Sequence[str]) -> CommandLine:
    """Split `argv` at each `--model PATH`, `--model=PATH` and `--demo`.

    The first word opens the first block if it is no option: it is the model's path.

    Raises:
        UsageError: a `--model` without a path, a `--demo` with one; the message names the block.
    """
    words = deque(argv)
    prelude: list[str] = []
    opened: list[tuple[str | None, list[str]]] = []
    arguments = prelude

    def open_block(path: str | None) -> list[str]:
        opened.append((path, []))
        return opened[-1][1]

    if words and not words[0].startswith("-"):
        arguments = open_block(_checked_path(words.popleft(), 1))
    while words:
        word = words.popleft()
        flag, separator, value = word.partition("=")
        if flag == DEMO_FLAG:
            if separator:
                raise UsageError(f"block {len(opened) + 1}: {DEMO_FLAG} takes no value")
            arguments = open_block(None)
        elif flag == MODEL_FLAG:
            path = value if separator else _following_path(words)
            arguments = open_block(_checked_path(path, len(opened) + 1))
        else:
            arguments.append(word)
    blocks = (Block(n, path, tuple(words)) for n, (path, words) in enumerate(opened, start=1))
    return CommandLine(tuple(prelude), tuple(blocks))


def _following_path(words: deque[str]) -> str:
    """The word after `--model`, or "" when there is none or it is an option."""
    return words.popleft() if words and not words[0].startswith("-") else ""


def _checked_path(path: str, number: int) -> str:
    if not path:
        raise UsageError(f"block {number}: {MODEL_FLAG} needs the path of a model file or folder")
    return path
