"""Instruction sets that this machine has kernels of."""

from __future__ import annotations

from luce.engine.native.build import BuildError, find_compiler
from luce.engine.native.library import open_library


def levels() -> list[str]:
    """Best first; none without a compiler."""
    try:
        find_compiler()
    except BuildError:
        return []
    return [name for name in ("avx512", "avx2", "neon", "plain") if _has(name)]


def _has(name: str) -> bool:
    try:
        open_library(name)
    except LookupError:
        return False
    return True
