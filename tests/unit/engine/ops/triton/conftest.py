"""Kernels run on a GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Read when a kernel is defined, so it must stand before any kernel's module is imported.
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


def _read_scalars_of_one_element() -> None:
    """Triton 3.6's interpreter makes numbers of arrays of one element, which numpy 2.4 refuses."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


if not HAS_GPU:
    _read_scalars_of_one_element()


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose for a CPU what a GPU is given: Triton's operations, and nothing of the host's own."""
    from luce.engine.ops import select
    from luce.engine.ops.cpu import native_candidates

    def on_gpu(request: select.OpRequest, make: Callable[[], object]) -> list[object]:
        return [select.Candidate(select.TRITON, make(), lambda _: None)]

    monkeypatch.setattr(select, "_on_gpu", on_gpu)
    monkeypatch.setattr(native_candidates, "native_library", lambda: "not on a GPU")
