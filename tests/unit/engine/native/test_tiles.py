"""Memory of tiles, on systems that have no large pages."""

from __future__ import annotations

import errno
import mmap

import pytest
import torch
from random_blocks import activations, random_matrix

from luce.engine.ops.cpu.native import NativeOps


class PlainMemory(mmap.mmap):
    """Of a kernel that was built without large pages."""

    asked = 0

    def madvise(self, *_: int) -> None:
        PlainMemory.asked += 1
        raise OSError(errno.EINVAL, "Invalid argument")


def test_a_system_without_large_pages(ops: NativeOps, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, x = random_matrix("Q8_0", 40, 64), activations(3, 64)
    expected = ops.linear([matrix.stored], None)
    monkeypatch.setattr(mmap, "mmap", PlainMemory)
    before = PlainMemory.asked
    found = NativeOps(ops.tape.library).linear([matrix.stored], None)
    assert PlainMemory.asked > before
    assert expected is not None
    assert found is not None
    assert torch.equal(found(x), expected(x))
