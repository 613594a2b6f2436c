"""What an unknown key was probably meant to be."""

from __future__ import annotations

import pytest

from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, ROUTING_OPTIONS, keys_of, suggest


def test_every_flag_is_a_key() -> None:
    for option in ROUTING_OPTIONS + LISTENER_OPTIONS + MODEL_OPTIONS:
        keys = keys_of([option])
        assert [f"--{key}" for key in keys] == list(option.spellings)
        assert keys[option.key] == (option, False)


def test_negations_are_told_apart() -> None:
    keys = keys_of(MODEL_OPTIONS)
    negations = [key for key, (_, negated) in keys.items() if negated]
    assert negations == ["no-prefix-cache", "no-cpu-exact"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("max-context", "max-ctx"),
        ("primary-gpu", "load-balancing-primary-gpu"),
        ("next-model", "model"),
        ("load-balancing-next-model", "model"),
        ("zebra", None),
        ("", None),
    ],
)
def test_suggestions(key: str, meant: str | None) -> None:
    known = keys_of(ROUTING_OPTIONS + MODEL_OPTIONS)
    assert suggest(key, known) == meant
