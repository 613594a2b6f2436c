"""Arguments of the subcommands that are not the server: `inspect` and `bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from luce.cli.options import add_option, describe_unknown
from luce.config.table import MODEL_OPTIONS
from luce.errors import UsageError


@dataclass(frozen=True, slots=True)
class InspectArguments:
    """`luce inspect`: which model, and whether as JSON."""

    path: Path
    as_json: bool


@dataclass(frozen=True, slots=True)
class BenchArguments:
    """`luce bench`: which models and how they are held."""

    paths: tuple[Path, ...]
    threads: int | None
    dtype: str
    device: str


class _ToolParser(argparse.ArgumentParser):
    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments; an option that is none is told before what is missing."""
        for word in takewhile(lambda word: word != "--", words):
            is_flag = word.startswith("-") and not word[1:2].isdigit() and word != "-"
            if is_flag and word.partition("=")[0] not in self._option_string_actions:
                self.error(describe_unknown(word, self._option_string_actions))
        values, rest = self.parse_known_args(list(words))
        if rest:
            self.error(f"unexpected word {rest[0]!r}")
        return values

    def error(self, message: str) -> NoReturn:
        hint = "" if "--help" in message else " (see --help)"
        raise UsageError(f"{self.prog.split()[-1]}: {message.removeprefix('argument ')}{hint}")


_ENGINE_FIELDS = ("threads", "dtype", "target_device")
"""Fields of a model block that `luce bench` takes as well."""


def inspect_arguments(argv: Sequence[str]) -> InspectArguments:
    """Parse `luce inspect PATH [--json]`; `--help` prints and exits.

    Raises:
        UsageError: a wrong or missing argument.
    """
    parser = _parser("inspect", "Prints what a model file or folder says about itself.")
    parser.add_argument("path", metavar="MODEL", type=_path, help="GGUF file or model folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    values = parser.parse(argv)
    return InspectArguments(values.path, values.json)


def bench_arguments(argv: Sequence[str]) -> BenchArguments:
    """Parse `luce bench PATH... [options]`; `--help` prints and exits.

    Raises:
        UsageError: a wrong or missing argument.
    """
    parser = _parser("bench", "Measures decode and prefill speed of models on this machine.")
    parser.add_argument("paths", metavar="MODEL", type=_path, nargs="+", help="GGUF or folder")
    for option in MODEL_OPTIONS:
        if option.field in _ENGINE_FIELDS:
            add_option(parser, option, default=option.default, help=option.help)
    values = parser.parse(argv)
    return BenchArguments(tuple(values.paths), values.threads, values.dtype, values.target_device)


def _parser(name: str, description: str) -> _ToolParser:
    return _ToolParser(prog=f"luce {name}", description=description, allow_abbrev=False)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)
