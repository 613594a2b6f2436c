"""The pages are true: generated ones are current, and what they name exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from luce.cli.launch import LAUNCH_OPTIONS
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def names_in(page: Path, pattern: str) -> list[str]:
    """What `pattern` captures inside the page's `code` spans."""
    spans = re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))
    return [match for span in spans for match in re.findall(pattern, span)]


def test_generated_pages_are_current() -> None:
    spec = importlib.util.spec_from_file_location("luce_docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.stale_pages(ROOT / "docs") == []


@pages
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    missing = [
        target
        for target in targets
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]
    assert missing == []


@pages
def test_named_files_exist(page: Path) -> None:
    paths = names_in(page, r"^((?:src|tests|tools|docs|bench|requirements)/[\w./-]+)$")
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_life_of_a_request_names_files_of_the_package() -> None:
    page = ROOT / "docs" / "request-life.md"
    paths = names_in(page, r"^([a-z]+(?:/[a-z_]+)+\.py)$")
    assert len(set(paths)) >= 12
    assert [path for path in paths if not (ROOT / "src" / "luce" / path).is_file()] == []


def test_the_map_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [path.parent.name for path in (ROOT / "src" / "luce").glob("*/__init__.py")]
    assert [name for name in packages if f"`{name}/`" not in text] == []


@pages
def test_named_flags_exist(page: Path) -> None:
    if page.name == "differences.md":
        return  # it also names flags that we do not have
    options = LAUNCH_OPTIONS + LISTENER_OPTIONS + MODEL_OPTIONS
    known = {flag for option in options for flag in option.spellings}
    known |= {"--model", "--demo", "--help", "--version", "--json", "--check", "--x", "--no-x"}
    known |= {"--list-devices", "--print-profile", "--luce-mix", "--explain", "--engine"}
    named = names_in(page, r"^(--[a-z][a-z-]+)")
    assert [flag for flag in named if flag not in known] == []


@pages
def test_named_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"\bmake ([a-z][a-z-]*)\b", "\n".join(names_in(page, r".*")))
    assert [name for name in named if name not in targets] == []


@pages
def test_pages_stand_alone(page: Path) -> None:
    text = page.read_text("utf-8")
    assert re.findall(r"/work\b|/tmp\b|\bshared/|\.library", text) == []
