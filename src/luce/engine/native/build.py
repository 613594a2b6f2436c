"""Compiles the library: when a wheel is built, or on first use of a source tree.

The result is kept under a name that says what it was made of: sources, flags and compiler.
Imports nothing of luce, so that a build can run it before luce is installed; run as a module it
builds ahead of the first use.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
SHIPPED = FOLDER / "libluce_native.so"
"""Where a wheel has it."""
_PLAIN_SOURCES = ("pool.c", "blocks.c", "matrix.c", "dispatch.c")
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wno-psabi")
_LEVELS: dict[str, tuple[tuple[str, ...], ...]] = {
    "x86_64": (
        (),
        ("-mavx2", "-mfma", "-mf16c"),
        ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"),
    ),
    "aarch64": ((), ("-march=armv8.2-a+dotprod",)),
}
_TIMEOUT_S = 300
SWITCH = "LUCE_NATIVE"
"""Environment variable: an instruction set's name, or "off"."""


class BuildError(Exception):
    """The library cannot be built here; the message says why."""


def is_there() -> bool:
    """Whether a library is there already; builds and loads nothing.

    One that is still to be built may fail to be, and a plan that counts on it would be too small.
    """
    if os.environ.get(SWITCH) == "off":
        return False
    if SHIPPED.exists():
        return True
    try:
        return _cached_path(find_compiler()).exists()
    except BuildError:
        return False


def find_compiler() -> str:
    """A C compiler's path.

    Raises:
        BuildError: there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path is not None:
            return path
    raise BuildError("no C compiler was found (set CC, or install gcc or clang)")


def cached_library() -> Path:
    """The library for these sources and this compiler, built if it is not there yet.

    Raises:
        BuildError: it cannot be.
    """
    compiler = find_compiler()
    target = _cached_path(compiler)
    if not target.exists():
        build(compiler, target)
    return target


def build(
    compiler: str, target: Path, more_flags: tuple[str, ...] = (), *, main: Path | None = None
) -> None:
    """Compile and link into `target`: a library, or a program where there is a `main`.

    Args:
        compiler: its path.
        target: what is written.
        more_flags: beside the usual ones, for compiling and linking.
        main: source of a program to link with.

    Raises:
        BuildError: the compiler failed, or this machine is none of those that are supported.
    """
    machine = platform.machine()
    if machine not in _LEVELS:
        raise BuildError(f"there are no kernels for {machine}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            objects = [
                _compile(compiler, source, (*flags, *more_flags), Path(scratch) / f"{index}.o")
                for index, (source, flags) in enumerate(_units(machine, main))
            ]
            linked = Path(scratch) / "linked"
            kind = ("-shared",) if main is None else ()
            inputs = map(str, objects)
            _call([compiler, *kind, *more_flags, *inputs, "-o", str(linked), "-pthread", "-lm"])
            # Whole or not at all, whoever else builds it at this moment.
            linked.replace(target)
    except OSError as error:
        raise BuildError(f"{target.parent} cannot be made or written: {error.strerror}") from error


def _units(machine: str, main: Path | None) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for source in _PLAIN_SOURCES:
        yield FOLDER / source, ()
    for flags in _LEVELS[machine]:
        yield FOLDER / "kernels.c", flags
    if main is not None:
        yield main, (f"-I{FOLDER}",)


def _compile(compiler: str, source: Path, flags: tuple[str, ...], target: Path) -> Path:
    _call([compiler, *_FLAGS, *flags, "-c", str(source), "-o", str(target)])
    return target


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[0]}")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "luce" / "native"
    except RuntimeError as error:  # A user of a container may be none of its machine.
        raise BuildError(
            "this user has no home folder to keep the library in (set HOME or XDG_CACHE_HOME)"
        ) from error


def _cached_path(compiler: str) -> Path:
    return _cache_folder() / f"luce_native-{_fingerprint(compiler)}.so"


def _fingerprint(compiler: str) -> str:
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")]):
        digest.update(path.read_bytes())
    status = Path(compiler).resolve().stat()
    digest.update(repr((compiler, status.st_size, status.st_mtime_ns, _FLAGS, _LEVELS)).encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    try:
        cached_library()
    except BuildError as error:
        # luce runs without it, more slowly.
        sys.stderr.write(f"no native CPU kernels: {error}\n")
