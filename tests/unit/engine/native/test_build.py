"""Building the library, and doing without it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from luce.engine.native import build, library
from luce.engine.native.library import native_library, open_library
from luce.errors import UsageError


@pytest.fixture(autouse=True)
def _forget() -> object:
    """Each test asks anew, and so does whoever comes after."""
    native_library.cache_clear()
    yield None
    native_library.cache_clear()


def test_no_compiler_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> Path:
        raise build.BuildError("no C compiler was found")

    monkeypatch.setattr(build, "cached_library", none)
    open_library.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert native_library() == "no C compiler was found"
        assert native_library() == "no C compiler was found"
    open_library.cache_clear()
    assert [record.message for record in caplog.records] == [
        "no native kernels; the CPU computes more slowly"
    ]


def test_find_compiler_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match="set CC, or install gcc"):
        build.find_compiler()


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'cc: out of ideas' >&2\nexit 1\n")
    compiler.chmod(0o755)
    target = tmp_path / "lib.so"
    with pytest.raises(build.BuildError, match="out of ideas"):
        build.build(str(compiler), target)
    assert not target.exists()


def test_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "mips")
    with pytest.raises(build.BuildError, match="no kernels for mips"):
        build.build("cc", tmp_path / "lib.so")


def test_the_name_says_what_it_was_made_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built: list[Path] = []

    def pretend(compiler: str, target: Path) -> None:
        built.append(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()

    compiler = tmp_path / "cc"
    compiler.write_text("one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "find_compiler", lambda: str(compiler))
    monkeypatch.setattr(build, "build", pretend)
    assert build.cached_library() == build.cached_library()
    compiler.write_text("another")
    build.cached_library()
    assert len(set(built)) == len(built) == 2


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody(_: object) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "none.so")
    assert not build.is_there()
    with pytest.raises(build.BuildError, match=r"no home folder .*set HOME or XDG_CACHE_HOME"):
        build.cached_library()


def test_off_and_unknown_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.SWITCH, "off")
    assert native_library() == "LUCE_NATIVE is off"
    native_library.cache_clear()
    monkeypatch.setenv(build.SWITCH, "sse9")
    with pytest.raises(UsageError, match=r"LUCE_NATIVE=sse9: there are no such kernels; unset it"):
        native_library()


@pytest.mark.parametrize("machine_has", [("avx2", "plain"), ("neon", "plain")])
def test_a_level_of_another_machine_is_answered_with_those_of_this(
    machine_has: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_level(level: str | None) -> None:
        if level not in machine_has:
            raise LookupError

    monkeypatch.setattr(library, "open_library", open_level)
    monkeypatch.setattr("platform.machine", lambda: "riscy")
    for asked in ("avx512", "avx2", "neon"):
        if asked in machine_has:
            continue
        native_library.cache_clear()
        monkeypatch.setenv(build.SWITCH, asked)
        with pytest.raises(UsageError) as refused:
            native_library()
        message = str(refused.value)
        assert message.startswith(f"LUCE_NATIVE={asked}: this machine (riscy) has no {asked}; ")
        assert message.endswith(f"set it to one of {', '.join(machine_has)}, off")


def test_a_library_is_there_once_it_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compiler alone promises nothing: it may fail, and so may the folder."""
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "shipped.so")
    monkeypatch.setattr(build, "_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(build, "_fingerprint", lambda compiler: compiler)
    monkeypatch.setattr(build, "find_compiler", lambda: "cc")
    assert not build.is_there()
    (tmp_path / "luce_native-cc.so").touch()
    assert build.is_there()
    monkeypatch.setenv(build.SWITCH, "off")
    assert not build.is_there()


def test_what_a_wheel_has_needs_no_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "shipped.so")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert not build.is_there()
    (tmp_path / "shipped.so").touch()
    assert build.is_there()
