"""Options are generated from the configuration's fields; every one of them is run here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from luce.cli.options import add_option, parse_words, repeated_flags
from luce.config.option import Option
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.errors import UsageError

ALL = MODEL_OPTIONS + LISTENER_OPTIONS

WRITTEN: dict[str, tuple[str | None, Any]] = {
    "--model-name": ("small", "small"),
    "--profile": ("small-cpu", "small-cpu"),
    "--max-ctx": ("4096", 4096),
    "--max-concurrency": ("8", 8),
    "--kv-pool-tokens": ("16384", 16384),
    "--default-max-tokens": ("300", 300),
    "--max-tokens": ("200", 200),
    "--think-max-tokens": ("0", 0),
    "--hard-limit-reply-budget": ("512", 512),
    "--reasoning-effort-low": ("1", 1),
    "--reasoning-effort-medium": ("2", 2),
    "--reasoning-effort-high": ("3", 3),
    "--reasoning-effort-x-high": ("4", 4),
    "--reasoning-effort-max": ("5", 5),
    "--model-cards": ("cards", Path("cards")),
    "--chat-template-file": ("chat.jinja", Path("chat.jinja")),
    "--target-device": ("cuda:1", "cuda:1"),
    "--dtype": ("bfloat16", "bfloat16"),
    "--threads": ("2", 2),
    "--chunk": ("256", 256),
    "--cache-type-k": ("q8_0", "q8_0"),
    "--cache-type-v": ("q4_0", "q4_0"),
    "--prefix-cache": (None, True),
    "--no-prefix-cache": (None, False),
    "--prefix-snapshot-memory": ("2GiB", "2GiB"),
    "--cpu-exact": (None, True),
    "--no-cpu-exact": (None, False),
    "--host": ("0.0.0.0", "0.0.0.0"),
    "--port": ("9000", 9000),
    "--uds": ("luce.sock", Path("luce.sock")),
    "--tls-cert": ("cert.pem", Path("cert.pem")),
    "--tls-key": ("key.pem", Path("key.pem")),
    "--api-key": ("sk-1", ("sk-1",)),
    "--api-key-file": ("keys", Path("keys")),
    "--cors": (None, True),
    "--no-cors": (None, False),
    "--cors-origin": ("https://a.example", ("https://a.example",)),
    "--routing-queue-limit": ("0", 0),
    "--routing-queue-timeout-s": ("20", 20),
    "--max-body-mib": ("8", 8),
    "--keep-alive-interval-s": ("7", 7),
    "--stall-timeout-s": ("9", 9),
    "--shutdown-grace-s": ("0", 0),
}
"""Flag → (what a person writes after it, the value it must become)."""


def flags_of(options: tuple[Option, ...]) -> list[str]:
    return [flag for entry in options for flag in entry.spellings]


WITH_VALUE = [flag for flag in flags_of(ALL) if WRITTEN[flag][0] is not None]
SWITCHES = [flag for flag in flags_of(ALL) if WRITTEN[flag][0] is None]


def option_of(flag: str) -> Option:
    (entry,) = [entry for entry in ALL if flag in entry.spellings]
    return entry


def test_every_flag_has_an_example_here() -> None:
    assert sorted(WRITTEN) == sorted(flags_of(ALL))


@pytest.mark.parametrize("flag", WITH_VALUE)
@pytest.mark.parametrize("separator", [" ", "="])
def test_every_flag_parses_to_its_field(flag: str, separator: str) -> None:
    text, value = WRITTEN[flag]
    words = [flag, text] if separator == " " else [f"{flag}={text}"]
    assert parse_words([word for word in words if word], ALL, "block 1 (m)") == {
        option_of(flag).field: value
    }


@pytest.mark.parametrize("flag", WITH_VALUE)
def test_every_flag_needs_a_value(flag: str) -> None:
    with pytest.raises(UsageError, match=rf"^block 1 \(m\): {flag} needs a value$"):
        parse_words([flag], ALL, "block 1 (m)")


@pytest.mark.parametrize("flag", SWITCHES)
def test_every_switch_parses_to_its_field_and_takes_no_value(flag: str) -> None:
    assert parse_words([flag], ALL, "b") == {option_of(flag).field: WRITTEN[flag][1]}
    with pytest.raises(UsageError, match=rf"^b: {flag} takes no value$"):
        parse_words([f"{flag}=no\nmore"], ALL, "b")
    with pytest.raises(UsageError, match=r"^b: unexpected word 'no'"):
        parse_words([flag, "no"], ALL, "b")


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


def test_integers_take_a_plus_sign() -> None:
    assert parse_words(["--chunk=+64"], ALL, "b") == {"chunk": 64}


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


def test_lists_keep_all_that_was_written_and_are_no_repetition() -> None:
    words = "--api-key a --cors-origin http://a --api-key=b --cors-origin=* --api-key -- ".split()
    words[-1] = "c"
    assert parse_words(words, ALL, "block 1 (m)") == {
        "api_key": ("a", "b", "c"),
        "cors_origin": ("http://a", "*"),
    }
    assert repeated_flags(words, ALL) == []


def test_a_key_that_is_refused_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="--api-key: a key is made of") as refused:
        parse_words(["--api-key", "my secret"], ALL, "block 1 (m)")
    assert "secret" not in str(refused.value)


def test_the_last_form_of_a_switch_counts() -> None:
    words = ["--no-prefix-cache", "--prefix-cache"]
    assert parse_words(words, ALL, "b") == {"prefix_cache": True}
    assert parse_words(words[::-1], ALL, "b") == {"prefix_cache": False}
    assert repeated_flags(words, ALL) == ["--prefix-cache"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--target-device", "tpu:0"], "b: --target-device: 'tpu:0' is none of cpu, cpu:N"),
        (["--model-name", "auto"], "b: --model-name: 'auto' is reserved"),
        (["--host", "999.1.1.1"], "b: --host: '999.1.1.1' is no IPv4 address"),
    ],
)
def test_values_of_a_form_are_checked(words: list[str], part: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_words(words, ALL, "b")
    assert str(raised.value).startswith(part)


@pytest.mark.parametrize("word", ["--max-c", "--thread", "--por=1"])
def test_shortened_flags_are_unknown_but_suggested(word: str) -> None:
    with pytest.raises(UsageError, match=r"unknown option --\S+; did you mean --"):
        parse_words([word, "5"], ALL, "b")


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("--primary-gpu", "--load-balancing-primary-gpu"),
        ("--next-model", "--model"),
        ("--load-balancing-next-model", "--model"),
        ("--load-balance", "--load-balancing"),
    ],
)
def test_old_spellings_are_unknown_and_the_new_one_is_named(word: str, instead: str) -> None:
    for words in ([word, "x"], [f"{word}=x"]):
        with pytest.raises(UsageError) as raised:
            parse_words(words, ALL, "b")
        assert str(raised.value) == f"b: unknown option {word}; did you mean {instead}?"


@pytest.mark.parametrize("word", ["-x", "--", "--paged-attention"])
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


def test_options_fit_any_parser() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for entry in MODEL_OPTIONS:
        add_option(parser, entry)
    values = parser.parse_args(["--chunk", "64", "--no-prefix-cache"])
    assert (values.chunk, values.prefix_cache, values.threads) == (64, False, None)
    with pytest.raises(argparse.ArgumentError, match="'x' is not a whole number"):
        parser.parse_args(["--chunk", "x"])
