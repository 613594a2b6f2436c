"""Options are generated from the configuration's fields; every one of them is run here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from luce.cli.options import (
    LISTENER_OPTIONS,
    MAX_INTEGER,
    MODEL_OPTIONS,
    Option,
    options_of,
    parse_words,
    repeated_flags,
)
from luce.config.model import option
from luce.errors import UsageError

ALL = MODEL_OPTIONS + LISTENER_OPTIONS

WRITTEN: dict[str, tuple[str, Any]] = {
    "--model-name": ("small", "small"),
    "--max-ctx": ("4096", 4096),
    "--max-concurrency": ("8", 8),
    "--kv-pool-tokens": ("16384", 16384),
    "--default-max-tokens": ("300", 300),
    "--max-tokens": ("200", 200),
    "--chat-template-file": ("chat.jinja", Path("chat.jinja")),
    "--target-device": ("cuda:1", "cuda:1"),
    "--dtype": ("bfloat16", "bfloat16"),
    "--threads": ("2", 2),
    "--chunk": ("256", 256),
    "--host": ("0.0.0.0", "0.0.0.0"),
    "--port": ("9000", 9000),
    "--routing-queue-limit": ("0", 0),
    "--max-body-mib": ("8", 8),
    "--keep-alive-interval-s": ("7", 7),
    "--stall-timeout-s": ("9", 9),
    "--shutdown-grace-s": ("0", 0),
}
"""Flag → (what a person writes, the value it must become)."""


def flags_of(options: tuple[Option, ...]) -> list[str]:
    return [flag for entry in options for flag in entry.flags]


def test_every_flag_has_an_example_here() -> None:
    assert sorted(WRITTEN) == sorted(flags_of(ALL))


@pytest.mark.parametrize("flag", flags_of(ALL))
@pytest.mark.parametrize("separator", [" ", "="])
def test_every_flag_parses_to_its_field(flag: str, separator: str) -> None:
    text, value = WRITTEN[flag]
    words = [flag, text] if separator == " " else [f"{flag}={text}"]
    (entry,) = [entry for entry in ALL if flag in entry.flags]
    assert parse_words(words, ALL, "block 1 (m)") == {entry.field: value}


@pytest.mark.parametrize("flag", flags_of(ALL))
def test_every_flag_needs_a_value(flag: str) -> None:
    with pytest.raises(UsageError, match=rf"^block 1 \(m\): {flag} needs a value$"):
        parse_words([flag], ALL, "block 1 (m)")


@pytest.mark.parametrize("entry", [entry for entry in ALL if entry.kind is int])
def test_integers_are_held_to_their_range(entry: Option) -> None:
    flag = entry.flags[0]
    for good in (entry.lowest, entry.highest):
        assert parse_words([flag, str(good)], ALL, "b") == {entry.field: good}
    for bad in (entry.lowest - 1, entry.highest + 1, 10**30):
        with pytest.raises(UsageError, match=f"b: {flag}: .* out of range, {entry.lowest} to"):
            parse_words([flag, str(bad)], ALL, "b")


@pytest.mark.parametrize("text", ["abc", "", "1.5", "1_000", " 7", "0x10", "٣", "1e3", "+-1"])
def test_integers_must_be_plain_digits(text: str) -> None:
    with pytest.raises(UsageError, match=r"--chunk: .* is not a whole number"):
        parse_words([f"--chunk={text}"], ALL, "b")


def test_integers_take_a_plus_sign_and_no_range_is_unbounded() -> None:
    assert parse_words(["--chunk=+64"], ALL, "b") == {"chunk": 64}
    assert all(entry.highest <= MAX_INTEGER for entry in ALL)


def test_choices_are_listed_when_none_fits() -> None:
    with pytest.raises(UsageError, match="--dtype: 'int3' is none of auto, float32, bfloat16"):
        parse_words(["--dtype", "int3"], ALL, "b")


@pytest.mark.parametrize("flag", ["--model-name", "--chat-template-file", "--host"])
def test_empty_texts_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag}: the value is empty"):
        parse_words([flag, ""], ALL, "b")


def test_only_written_options_are_returned() -> None:
    assert parse_words([], ALL, "b") == {}


def test_the_last_of_a_repeated_option_counts() -> None:
    words = ["--chunk", "32", "--threads=1", "--chunk=64"]
    assert parse_words(words, ALL, "b") == {"chunk": 64, "threads": 1}
    assert repeated_flags(words, ALL) == ["--chunk"]
    assert repeated_flags(words[:2], ALL) == []


@pytest.mark.parametrize("word", ["--max-c", "--thread", "--por=1"])
def test_shortened_flags_are_unknown_but_suggested(word: str) -> None:
    with pytest.raises(UsageError, match=r"unknown option --\S+; did you mean --"):
        parse_words([word, "5"], ALL, "b")


@pytest.mark.parametrize(
    "word", ["--primary-gpu", "--next-model", "--load-balancing-next-model", "-x", "--"]
)
def test_unknown_options_are_named(word: str) -> None:
    with pytest.raises(UsageError, match=rf"^b: unknown option {word}; --help lists"):
        parse_words([word], ALL, "b")


def test_listener_option_in_a_later_block() -> None:
    with pytest.raises(UsageError, match=r"^block 2 \(b\): --port belongs in the first model"):
        parse_words(["--port", "1"], MODEL_OPTIONS, "block 2 (b)")


def test_model_option_before_the_first_model() -> None:
    with pytest.raises(UsageError, match=r"--max-ctx belongs to a model"):
        parse_words(["--max-ctx=64"], LISTENER_OPTIONS, "before the first model")


@pytest.mark.parametrize("word", ["b.gguf", "-"])
def test_stray_words_are_named(word: str) -> None:
    with pytest.raises(UsageError, match=f"unexpected word '{word}'"):
        parse_words(["--chunk", "64", word], ALL, "b")


@dataclass(frozen=True)
class Sample:
    plain: int = 3
    count: int | None = option(None, "--count", "-c", metavar="N", help="How many.")
    where: Path = option(Path("x"), "--where", metavar="FILE", help="Where.")


def test_fields_without_flags_are_no_options() -> None:
    count, where = options_of(Sample)
    assert (count.flags, count.kind, count.default) == (("--count", "-c"), int, None)
    assert (where.kind, where.default) == (Path, Path("x"))
    assert parse_words(["-c", "4"], (count, where), "b") == {"count": 4}


def test_value_word_is_the_metavar_or_the_choices() -> None:
    by_flag = {entry.flags[0]: entry for entry in ALL}
    assert by_flag["--port"].value_word == "N"
    assert by_flag["--dtype"].value_word == "auto|float32|bfloat16|float16"


def test_parse_raises_what_argparse_reports() -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        LISTENER_OPTIONS[1].parse("x")
