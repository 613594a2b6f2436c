"""The library's types and functions, as `native.h` declares them."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_void_p,
)
from functools import cache, lru_cache

from luce.engine.native import build
from luce.errors import UsageError

TILE = 16
GROUP = 32
SEGMENT = 64
SPAN = 256
UNIT_ROWS = 64
MANY_ROWS = 12
MOST_HEAD_DIM = 256
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
MAX_PARTS = 4
LEVELS = ("avx512", "avx2", "neon", "plain")
"""Instruction sets there are kernels of, the best first."""
EMBED, NORM, QUANTISE, PRODUCT, GATED, PLACE, ATTEND, CHOOSE = range(8)

_log = logging.getLogger(__name__)


class Matrix(Structure):
    """`luce_matrix`."""

    _fields_ = [
        ("rows", c_int32),
        ("columns", c_int32),
        ("tiles", c_int32),
        ("format", c_int32),
        ("zero", c_int32),
        ("group_bytes", c_int32),
        ("tile_bytes", c_int64),
        ("data", c_void_p),
        ("row_factors", c_void_p),
        ("table", c_uint8 * 16),
    ]


class LinearParts(Structure):
    """`luce_linear`."""

    _fields_ = [("num_parts", c_int32), ("parts", Matrix * MAX_PARTS), ("bias", c_void_p)]


class Rows(Structure):
    """`luce_rows`."""

    _fields_ = [("columns", c_int32), ("codes", c_void_p), ("groups", c_void_p)]


class Heads(Structure):
    """`luce_heads`."""

    _fields_ = [
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotary_dim", c_int32),
        ("interleaved", c_int32),
    ]


class Cache(Structure):
    """`luce_cache`."""

    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("block_bytes", c_int64),
        ("block_tokens", c_int32),
        ("key_type", c_int32),
        ("value_type", c_int32),
    ]


class Choice(Structure):
    """`luce_choice`."""

    _fields_ = [
        ("top_p", c_double),
        ("uniform", c_double),
        ("temperature", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
        ("token", c_int32),
    ]


class Step(Structure):
    """`luce_step`."""

    _fields_ = [
        ("num_tokens", c_int32),
        ("num_units", c_int32),
        ("input_ids", c_void_p),
        ("rotary", c_void_p),
        ("slots", c_void_p),
        ("unit_tokens", c_void_p),
        ("unit_counts", c_void_p),
        ("unit_lengths", c_void_p),
        ("unit_tables", c_void_p),
        ("blocks", c_void_p),
        ("starts", c_void_p),
        ("state_slots", c_void_p),
        ("num_sequences", c_int32),
        ("num_pieces", c_int32),
        ("piece_units", c_void_p),
        ("piece_spans", c_void_p),
        ("arrivals", c_void_p),
        ("partials", c_void_p),
        ("partial_rows", c_int32),
    ]


class Op(Structure):
    """`luce_op`."""

    _fields_ = [
        ("kind", c_int32),
        ("width", c_int32),
        ("eps", c_float),
        ("unused", c_int32),
        ("linear", c_void_p),
        ("in_", c_void_p),
        ("out", c_void_p),
        ("in_rows", c_void_p),
        ("out_rows", c_void_p),
        ("weight", c_void_p),
        ("key_weight", c_void_p),
        ("heads", Heads),
        ("cache", Cache),
        ("more", c_void_p),
        ("choices", c_void_p),
    ]


class NativeLibrary:
    """The loaded library at one level.

    Args:
        loaded: the library.
        level: an instruction set's name, or None for the best there is.

    Raises:
        LookupError: this machine does not have the level.
    """

    def __init__(self, loaded: ctypes.CDLL, level: str | None) -> None:
        loaded.luce_level.argtypes = [c_char_p]
        loaded.luce_level.restype = c_void_p
        loaded.luce_pool_start.argtypes = [c_int32]
        loaded.luce_pool_start.restype = c_int32
        loaded.luce_pool_run.argtypes = [c_void_p, c_int32, POINTER(Step), c_void_p]
        loaded.luce_pool_run.restype = None
        loaded.luce_matrix_layout.argtypes = [POINTER(Matrix), c_int32, c_int32, c_int32]
        loaded.luce_matrix_layout.restype = c_int
        loaded.luce_matrix_fill.argtypes = [POINTER(Matrix), c_int32, c_void_p, c_int32, c_int32]
        loaded.luce_matrix_fill.restype = c_int
        kernels = loaded.luce_level(None if level is None else level.encode())
        if not kernels:
            raise LookupError(f"this machine has no kernels of level {level!r}")
        self._loaded = loaded
        self._threads = 1
        self._kernels = kernels
        self.level = ctypes.cast(kernels, POINTER(c_char_p))[0].decode()

    @property
    def threads(self) -> int:
        """How many are used."""
        return self._threads

    def use_threads(self, count: int) -> int:
        """Have the pool use so many threads, the caller's included; returns how many there are."""
        self._threads = int(self._loaded.luce_pool_start(count))
        return self._threads

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Run in the caller's thread alone: what is written twice is written in one order."""
        threads = self._threads
        self.use_threads(1)
        try:
            yield
        finally:
            self.use_threads(threads)

    def run(self, ops: ctypes.Array[Op], step: Step) -> None:
        """Run the operations one after the other."""
        self._loaded.luce_pool_run(ops, len(ops), ctypes.byref(step), self._kernels)

    def layout(self, type_number: int, rows: int, columns: int) -> Matrix | None:
        """A matrix without its memory, None for a type that has no kernels."""
        matrix = Matrix()
        if self._loaded.luce_matrix_layout(ctypes.byref(matrix), type_number, rows, columns):
            return None
        return matrix

    def fill(self, matrix: Matrix, type_number: int, raw: int, first: int, rows: int) -> None:
        """Put stored rows, at address `raw`, at rows `first` to `first + rows`.

        Raises:
            MemoryError: there is none left.
        """
        if self._loaded.luce_matrix_fill(ctypes.byref(matrix), type_number, raw, first, rows):
            raise MemoryError


@cache
def open_library(level: str | None) -> NativeLibrary:
    """The library at a level, built first where it has to be.

    Raises:
        LookupError: this machine does not have the level.
        build.BuildError: there is no library, and none can be built.
    """
    path = build.SHIPPED if build.SHIPPED.exists() else build.cached_library()
    try:
        return NativeLibrary(ctypes.CDLL(str(path)), level)
    except OSError as error:
        raise build.BuildError(f"{path} cannot be loaded: {error}") from error


def levels_here() -> list[str]:
    """Instruction sets that this machine has kernels of, the best first.

    Raises:
        build.BuildError: there is no library, and none can be built.
    """
    return [name for name in LEVELS if _has(name)]


def _has(level: str) -> bool:
    try:
        open_library(level)
    except LookupError:
        return False
    return True


def _why_not(level: str) -> str:
    if level in LEVELS:
        return f"this machine ({platform.machine()}) has no {level}"
    return "there are no such kernels"


@lru_cache(maxsize=1)
def native_library() -> NativeLibrary | str:
    """The library at the level asked for or the best one, or why there is none.

    Raises:
        UsageError: this machine does not have the level asked for. What is planned with native
            kernels would not fit without them.
    """
    asked = os.environ.get(build.SWITCH, "")
    if asked == "off":
        return f"{build.SWITCH} is off"
    try:
        return open_library(asked or None)
    except LookupError as error:
        raise UsageError(
            f"{build.SWITCH}={asked}: {_why_not(asked)}; unset it for the best there are, or set "
            f"it to one of {', '.join(levels_here())}, off"
        ) from error
    except build.BuildError as error:
        _log.warning("no native kernels; the CPU computes more slowly", extra={"why": str(error)})
        return str(error)
