"""Model cards: found by name, checked key by key."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from luce.errors import ModelFileError
from luce.text.model_card import PACKAGED_CARDS, card_stem, find_card, read_card, tell_unknown_keys
from luce.text.reasoning import EFFORTS

LEAST: dict[str, Any] = {
    "name": "Tiny",
    "source": "a test",
    "verified_at": "2026-11-29",
    "max_tokens": 1000,
}


def write(folder: Path, name: str = "tiny.json", /, **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**LEAST, **changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("Qwen3.6-27B", "qwen3.6-27b"),
        ("Qwen3.6 27B", "qwen3.6-27b"),
        ("Laguna\tXS_2", "laguna-xs-2"),
        ("Gemma 4 (26B)", "gemma-4-26b"),
        ("../../etc/passwd", "....etcpasswd"),
        ("Ünï", "n"),
        ("", ""),
    ],
)
def test_stem(name: str, stem: str) -> None:
    assert card_stem(name) == stem


def test_packaged_cards_are_right_and_findable() -> None:
    paths = sorted(PACKAGED_CARDS.glob("*.json"))
    assert [path.stem for path in paths] == ["gemma-4-26b", "laguna-xs", "qwen3.6-27b"]
    for path in paths:
        name = json.loads(path.read_text(encoding="utf-8"))["name"]
        card = find_card(name)
        assert card is not None
        assert card.origin == f"luce:{path.name}"


def test_reference_figures() -> None:
    qwen, laguna, gemma = map(find_card, ("Qwen3.6-27B", "Laguna XS", "Gemma-4-26B"))
    assert qwen is not None
    assert laguna is not None
    assert gemma is not None
    assert (qwen.max_tokens, qwen.complex_problem_max_tokens) == (32768, 81920)
    assert qwen.sampling == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
    assert list(qwen.effort_tiers.values()) == [4032, 16128, 32256, 56832, 81408]
    assert qwen.thinking_terminator_hint is not None
    assert qwen.thinking_terminator_hint.endswith("</think>")
    assert laguna.max_tokens == 4096
    assert laguna.sampling == {"temperature": 0.6, "top_p": 0.95, "top_k": 50}
    assert gemma.max_tokens == 16384
    assert gemma.sampling == {"temperature": 1.0, "top_p": 0.95, "top_k": 64}


def test_a_folders_card_wins(tmp_path: Path) -> None:
    write(tmp_path, "qwen3.6-27b.json", max_tokens=77)
    card = find_card("Qwen3.6 27B", tmp_path)
    assert card is not None
    assert card.max_tokens == 77
    assert card.origin == str(tmp_path / "qwen3.6-27b.json")
    other = find_card("Laguna XS", tmp_path)
    assert other is not None
    assert other.origin == "luce:laguna-xs.json"


def test_no_card(tmp_path: Path) -> None:
    write(tmp_path, ".json")
    for name in ("Unheard of", "", "...", "()"):
        assert find_card(name, tmp_path) is None


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_is_none(tmp_path: Path, is_file: bool) -> None:
    folder = write(tmp_path) if is_file else tmp_path / "missing"
    with pytest.raises(ModelFileError, match="no folder of model cards"):
        find_card("Tiny", folder)


def test_a_folder_that_leads_in_circles(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ModelFileError, match=r"loop: cannot be read: Too many levels"):
        find_card("Tiny", tmp_path / "loop")


def test_a_name_too_long_for_a_file_has_no_card(tmp_path: Path) -> None:
    assert find_card("x" * 300, tmp_path) is None


def test_a_card_that_is_no_file_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / f"{card_stem('Laguna XS')}.json").mkdir()
    with pytest.raises(ModelFileError, match=r"laguna-xs\.json: is not a regular file"):
        find_card("Laguna XS", tmp_path)


def test_everything(tmp_path: Path) -> None:
    given = {
        "complex_problem_max_tokens": 2000,
        "hard_limit_reply_budget": 0,
        "thinking_marker": "</think>",
        "thinking_terminator_hint": "\nEnough.</think>",
        "sampling": {"temperature": 0, "top_k": 20, "min_p": 0.1, "presence_penalty": -1.5},
        "reasoning_effort_tiers": {"low": 0, "high": 5, "max": 5},
        "download_urls": ["http://127.0.0.1/x"],
        "notes": "n",
    }
    card = read_card(write(tmp_path, **given))
    assert card.complex_problem_max_tokens == 2000
    assert card.hard_limit_reply_budget == 0
    assert (card.thinking_marker, card.thinking_terminator_hint) == (
        "</think>",
        "\nEnough.</think>",
    )
    assert card.sampling == given["sampling"]
    assert card.effort_tiers == {"low": 0, "high": 5, "max": 5}
    assert card.document == {**LEAST, **given}


def test_null_is_not_there(tmp_path: Path) -> None:
    optional = ("complex_problem_max_tokens", "hard_limit_reply_budget", "thinking_marker")
    optional += ("thinking_terminator_hint", "sampling", "reasoning_effort_tiers")
    card = read_card(write(tmp_path, **dict.fromkeys(optional)))
    assert card.sampling == card.effort_tiers == {}
    assert card.hard_limit_reply_budget is None
    card = read_card(write(tmp_path, sampling={"top_p": None}))
    assert card.sampling == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "name is missing; it must be a text"),
        ({"source": 5}, "source must be a text"),
        ({"verified_at": ""}, "verified_at must be a text that is not empty"),
        ({"max_tokens": None}, "max_tokens is missing; it must be a whole number, 1 or more"),
        ({"max_tokens": 0}, "max_tokens must be a whole number, 1 or more"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"max_tokens": 2**31}, "max_tokens must be a whole number"),
        ({"complex_problem_max_tokens": 999}, "must not be below max_tokens"),
        ({"hard_limit_reply_budget": -1}, "hard_limit_reply_budget must be a whole number, 0"),
        ({"hard_limit_reply_budget": 1000}, "hard_limit_reply_budget must be below max_tokens"),
        ({"thinking_marker": ["x"]}, "thinking_marker must be a text"),
        ({"sampling": []}, "sampling must be an object"),
        ({"sampling": {"heat": 1}}, "sampling.heat is unknown; there are temperature, top_p"),
        ({"sampling": {"temperature": -0.1}}, "sampling.temperature must be a number, 0 or more"),
        ({"sampling": {"temperature": "1"}}, "sampling.temperature must be a number"),
        ({"sampling": {"temperature": True}}, "sampling.temperature must be a number"),
        ({"sampling": {"temperature": 1e999}}, "Infinity"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p must be a number above 0 and at most 1"),
        ({"sampling": {"top_k": 2.5}}, "sampling.top_k must be a whole number, 0 or more"),
        ({"sampling": {"min_p": 2}}, "sampling.min_p must be a number from 0 to 1"),
        ({"sampling": {"presence_penalty": 3}}, "sampling.presence_penalty must be a number from"),
        ({"sampling": {"repetition_penalty": 0}}, "sampling.repetition_penalty must be a number"),
        ({"reasoning_effort_tiers": {"xhigh": 1}}, "reasoning_effort_tiers.xhigh is unknown"),
        ({"reasoning_effort_tiers": {"low": "1"}}, "reasoning_effort_tiers.low must be a whole"),
        (
            {"reasoning_effort_tiers": {"low": 5, "max": 4}},
            "reasoning_effort_tiers.max must not be below the tiers of less effort",
        ),
    ],
)
def test_bad_cards_say_which_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(ModelFileError) as caught:
        find_card("Tiny", tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\xff", '{"a":' * 100_000])
def test_files_that_are_no_cards(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tiny.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelFileError, match=r"tiny\.json"):
        find_card("tiny", tmp_path)


def test_a_card_that_is_no_number_at_all(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(LEAST).replace("1000", "1e400"), encoding="utf-8")
    with pytest.raises(ModelFileError, match="max_tokens must be a whole number"):
        find_card("tiny", tmp_path)


def test_keys_nobody_reads_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tell_unknown_keys(read_card(write(tmp_path, max_token=5, licence="x")))
    (record,) = caplog.records
    assert vars(record)["keys"] == "licence, max_token"


def test_the_tiers_are_in_order() -> None:
    assert EFFORTS == ("low", "medium", "high", "x-high", "max")
