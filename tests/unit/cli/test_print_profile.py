"""`--print-profile`: JSON on stdout and nothing else (A40)."""

from __future__ import annotations

import json

import pytest

from luce.cli.main import server_main
from luce.config.profile import PROFILES


def test_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--print-profile"]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out)
    assert [profile["name"] for profile in found] == list(PROFILES)
    assert all(set(profile) == {"name", "summary", "flags", "env"} for profile in found)
    assert streams.err == ""


def test_one_with_ordered_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--print-profile", "coding-agents"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flags"][0] == ["--max-ctx", "32768"]
    assert found["flags"][-1] == ["--prefix-cache", None]
    assert found["env"] == []


def test_env_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--print-profile", "many-clients"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["env"] == [["PYTORCH_ALLOC_CONF", "expandable_segments:True"]]


@pytest.mark.parametrize(
    ("words", "problem"),
    [(["nobody"], "'nobody' is none of small-cpu,"), (["a", "b"], "usage: luce_server")],
)
def test_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["--print-profile", *words]) == 2
    streams = capsys.readouterr()
    assert problem in streams.err
    assert streams.out == ""


def test_a_profile_sets_what_nobody_else_says(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "x.gguf", "--profile", "small-cpu", "--max-ctx", "512"]
    assert server_main(["--print-config", *words]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["--max-concurrency", "1", "profile", "small-cpu"] in rows
    assert ["--max-ctx", "512", "command", "line"] in rows
