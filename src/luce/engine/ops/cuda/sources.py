"""Kernels of CUDA C++: their text with its constants, and compiled.

A text is several files of this folder one after another. They say nothing of the processor's own
instructions: those are in `primitives.cuh`, which goes first where a GPU shall run it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from luce.engine.device import compile_kernel
from luce.engine.device_kernel import PLAIN_LAUNCH, DeviceKernel, KernelLaunch

_FOLDER = Path(__file__).parent
PRIMITIVES = "primitives.cuh"


def kernel_text(files: Sequence[str], constants: Mapping[str, int]) -> str:
    """Files of this folder after the definitions they want."""
    head = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return head + "".join((_FOLDER / name).read_text(encoding="utf-8") for name in files)


def compiled_kernel(
    name: str,
    files: Sequence[str],
    constants: Mapping[str, int],
    launch: KernelLaunch = PLAIN_LAUNCH,
) -> DeviceKernel:
    """The `extern "C"` kernel `name` of such a text, for the current device.

    Args:
        name: of the kernel.
        files: with it.
        constants: what they want defined.
        launch: how it is launched.

    Raises:
        RuntimeError: there is no compiler, or it or the device does not take it.
        AttributeError: this PyTorch cannot launch it so.
    """
    text = kernel_text([PRIMITIVES, *files], constants)
    try:
        _need_no_toolkit()
        return compile_kernel(text, name, launch)
    except (OSError, ImportError, TypeError) as error:
        raise RuntimeError(f"CUDA C++ cannot be compiled: {error}") from error


def _need_no_toolkit() -> None:
    """PyTorch's compiler asks where CUDA's headers are, of which no text here includes any."""
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME is None:
        cpp_extension.CUDA_HOME = sys.prefix
