"""The generated pages hold what the code says, and staleness is noticed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from luce import errors
from luce.cli.launch import LAUNCH_OPTIONS
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS


@pytest.fixture
def docs(
    load_tool: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    module = load_tool("docs")
    monkeypatch.setattr(module, "DOCS", tmp_path)
    return module


def rows(page: str) -> list[list[str]]:
    """Cells of all table rows."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_flag_has_one_row(docs: ModuleType) -> None:
    cells = [row[0] for row in rows(docs.flags_page()) if row[0].startswith("`")]
    options = LAUNCH_OPTIONS + LISTENER_OPTIONS + MODEL_OPTIONS
    assert cells == [", ".join(f"`{flag}`" for flag in option.spellings) for option in options]


def test_flag_rows_say_range_default_unit_and_variable(docs: ModuleType) -> None:
    by_flag = {row[0]: row for row in rows(docs.flags_page())}
    assert by_flag["`--port`"][1:4] == ["0 to 65535", "`8080`", "`LUCE_PORT`"]
    assert by_flag["`--max-ctx`"][1:4] == ["16 or more tokens", "", "`LUCE_MAX_CTX`"]
    assert by_flag["`--dtype`"][1:4] == ["`auto` `float32` `bfloat16` `float16`", "`auto`", ""]
    assert by_flag["`--prefix-cache`, `--no-prefix-cache`"][1:4] == ["none", "`on`", ""]
    assert by_flag["`--print-config`"][1] == "`=text` `=json` or none"
    assert by_flag["`--config`"][1:3] == ["`FILE`", ""]


def test_every_answer_has_a_row(docs: ModuleType) -> None:
    page = docs.errors_page()
    for error in (errors.QueueFull, errors.ContextLengthExceeded, errors.InternalError):
        row = next(row for row in rows(page) if row[4:5] == [f"`{error.__name__}`"])
        assert row[:2] == [str(error.status), f"`{error.code}`"]
    statuses = [int(row[0]) for row in rows(page) if re.fullmatch(r"[45]\d\d", row[0])]
    assert statuses == sorted(statuses)


def test_every_exit_code_has_a_row(docs: ModuleType) -> None:
    written = {row[1]: row[0] for row in rows(docs.errors_page()) if re.fullmatch(r"\d", row[0])}
    expected = {
        f"`{error.__name__}`": str(error.exit_code)
        for error in errors.StartupError.__subclasses__()
    }
    assert written == expected


def test_check_writes_nothing(
    docs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert docs.main(["--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert "docs/flags.md is stale: run make docs" in capsys.readouterr().err


def test_written_pages_are_current_until_changed(docs: ModuleType, tmp_path: Path) -> None:
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    (tmp_path / "errors.md").write_text("changed by hand")
    assert docs.stale_pages(tmp_path) == ["errors.md"]
    assert docs.main(["--check"]) == 1
