"""The demo model is found inside its package without importing the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from luce.cli.demo import INSTALL_COMMAND, find_demo_model
from luce.errors import UsageError


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def test_finds_the_model_without_running_the_package(packages: Path) -> None:
    folder = packages / "shipped_model"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    assert find_demo_model("shipped_model") == folder / "tiny.gguf"
    assert "shipped_model" not in sys.modules


def test_missing_package_tells_the_command() -> None:
    with pytest.raises(UsageError, match=INSTALL_COMMAND):
        find_demo_model("no_such_package_anywhere")


def test_package_without_a_model_tells_the_command(packages: Path) -> None:
    (packages / "empty_package").mkdir()
    (packages / "empty_package" / "__init__.py").touch()
    with pytest.raises(UsageError, match=INSTALL_COMMAND):
        find_demo_model("empty_package")


def test_module_instead_of_a_package(packages: Path) -> None:
    (packages / "single_module.py").touch()
    with pytest.raises(UsageError, match=INSTALL_COMMAND):
        find_demo_model("single_module")
