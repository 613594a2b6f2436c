"""Arguments of `luce inspect` and `luce bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from luce.cli.tools import BenchArguments, InspectArguments, bench_arguments, inspect_arguments
from luce.errors import UsageError


def test_inspect() -> None:
    assert inspect_arguments(["m.gguf"]) == InspectArguments(Path("m.gguf"), as_json=False)
    assert inspect_arguments(["--json", "m"]) == InspectArguments(Path("m"), as_json=True)


@pytest.mark.parametrize("words", [[], [""], ["a", "b"], ["a", "--jso"], ["a", "--yaml"]])
def test_inspect_refuses(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^inspect: "):
        inspect_arguments(words)


@pytest.mark.parametrize("words", [["--foo"], ["m", "--foo=3"], ["--foo", "m"]])
@pytest.mark.parametrize("parse", [inspect_arguments, bench_arguments])
def test_an_unknown_option_is_named(words: list[str], parse: Callable[[list[str]], object]) -> None:
    with pytest.raises(UsageError, match=r"unknown option --foo; --help lists all options$"):
        parse(words)


def test_what_is_close_is_suggested() -> None:
    with pytest.raises(UsageError, match=r"did you mean --json\?"):
        inspect_arguments(["m", "--jso"])
    with pytest.raises(UsageError, match=r"did you mean --threads\?"):
        bench_arguments(["m", "--thread", "2"])


def test_a_path_may_begin_with_dashes_after_two_of_them() -> None:
    assert inspect_arguments(["--", "--m.gguf"]).path == Path("--m.gguf")


def test_bench_defaults_are_the_servers() -> None:
    assert bench_arguments(["m"]) == BenchArguments((Path("m"),), None, "auto", "cpu")


def test_bench_takes_several_models_and_options() -> None:
    words = ["a", "b", "--threads", "2", "--dtype=float32", "--target-device", "cuda:0"]
    expected = BenchArguments((Path("a"), Path("b")), 2, "float32", "cuda:0")
    assert bench_arguments(words) == expected


@pytest.mark.parametrize(
    "words", [[], ["m", "--threads", "0"], ["m", "--dtype", "x"], ["m", "--port", "1"]]
)
def test_bench_refuses(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^bench: "):
        bench_arguments(words)


@pytest.mark.parametrize("parse", [inspect_arguments, bench_arguments])
def test_help_prints_and_exits(parse: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(parse)
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    assert "MODEL" in capsys.readouterr().out
