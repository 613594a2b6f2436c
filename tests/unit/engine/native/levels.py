"""Instruction sets that this machine has kernels of."""

from __future__ import annotations

from luce.engine.native.build import BuildError, find_compiler
from luce.engine.native.library import levels_here


def levels() -> list[str]:
    """Best first; none without a compiler."""
    try:
        find_compiler()
    except BuildError:
        return []
    return levels_here()
