"""Runs kernels of CUDA C++ on the host, block by block: see `cuda_emulation.hpp`."""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from luce.engine.device_kernel import PLAIN_LAUNCH, DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import kernel_text

_HEADER = Path(__file__).with_name("cuda_emulation.hpp")
SPLIT_HEADER = _HEADER.with_name("split_emulation.hpp")
"""With half precision and clusters of blocks of threads."""
RING_HEADER = _HEADER.with_name("ring_emulation.hpp")
"""With those too, and barriers in shared memory."""
_OF_PROCESSORS = ("hopper.cuh", "decode_primitives.cuh")
"""Files whose names the headers have."""
BULK_HEADER = _HEADER.with_name("bulk_emulation.hpp")
"""The same with bulk copies, and barriers that they arrive at."""
HOPPER_HEADER = _HEADER.with_name("hopper_emulation.hpp")
"""With copies by description, and tensor cores that read shared memory."""
HELD_HEADER = _HEADER.with_name("held_emulation.hpp")
"""That with bulk copies and half precision."""
STORES_HEADER = _HEADER.with_name("stores_emulation.hpp")
"""With clusters whose blocks store in each other's memory."""
COMPILER = shutil.which("c++") or shutil.which("g++")
"""None where no kernel can be run."""


class EmulationError(Exception):
    """The kernel did what a device would punish, or not notice."""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="luce-cuda-")


@functools.cache
def host_kernel(text: str, name: str, header: Path = _HEADER) -> HostKernel:
    """Compile a kernel's text, without the primitives, for the host."""
    assert COMPILER is not None
    program = Path(tempfile.mkdtemp(dir=_folder().name)) / name
    main = f"int main(int, char **words) {{ return emulation::run_program({name}, words); }}\n"
    checked = ["-fsanitize=alignment", "-fno-sanitize-recover=alignment"]
    command = [COMPILER, "-O1", "-std=c++17", "-w", *checked, "-x", "c++", "-include", str(header)]
    subprocess.run(
        [*command, "-o", str(program), "-"], input=f"{text}\n{main}".encode(), check=True
    )
    return HostKernel(program)


def _bytes(tensor: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """What lies from a tensor's first element to the end of its memory; shared with it."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole.numpy()[tensor.storage_offset() * tensor.element_size() :]


def described(tensor: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor:
    """What `hopper_emulation.hpp` has in place of the driver's: numbers behind a description."""
    words = torch.zeros(16, dtype=torch.int64)
    words[: len(numbers)] = torch.tensor(numbers)
    return torch.cat((words.view(torch.uint8), torch.from_numpy(_bytes(tensor)).clone()))


def matrix_map(matrix: torch.Tensor, box: tuple[int, ...]) -> torch.Tensor:
    """The description of a matrix of numbers of two bytes."""
    return described(matrix, [0, 0, 2 * matrix.stride(0), 0, box[0], *matrix.shape])


@dataclass(frozen=True, slots=True)
class HostKernel:
    """A kernel that can be launched."""

    program: Path

    def __call__(
        self,
        grid: tuple[int, int],
        threads: int,
        args: Sequence[torch.Tensor | int],
        shared_bytes: int = 0,
        *,
        backwards: bool = False,
    ) -> None:
        """Launch it: tensors on the CPU are read and written where they are.

        Args:
            grid: blocks of threads.
            threads: of a block.
            args: the kernel's.
            shared_bytes: of a block, poisoned with NaN.
            backwards: the last block and warp run first.

        Raises:
            EmulationError: what was seen to be wrong.
        """
        places: dict[int, int] = {}
        parts: list[bytes] = []
        for index, arg in enumerate(args):
            if isinstance(arg, int):
                parts.append(struct.pack("<Qi", 4, arg))
                continue
            first = places.setdefault(arg.data_ptr(), index)
            if first != index:
                parts.append(struct.pack("<q", -1 - first))
                continue
            data = _bytes(arg).tobytes()
            parts.append(struct.pack("<Q", len(data)) + data)
        with tempfile.TemporaryDirectory(dir=_folder().name) as folder:
            given, result = Path(folder) / "given", Path(folder) / "result"
            given.write_bytes(b"".join(parts))
            words = [given, result, *grid, threads, shared_bytes, int(backwards)]
            run = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
            if run.returncode:
                raise EmulationError(run.stderr.strip() or f"ended with {run.returncode}")
            self._take(result.read_bytes(), args, places)

    def _take(
        self, result: bytes, args: Sequence[torch.Tensor | int], places: dict[int, int]
    ) -> None:
        start = 0
        for index, arg in enumerate(args):
            if isinstance(arg, int):
                start += 4
            elif places[arg.data_ptr()] == index:
                memory = _bytes(arg)
                memory[:] = np.frombuffer(result, np.uint8, len(memory), start)
                start += len(memory)


class HostDevice:
    """What compiles and launches kernels in place of a GPU.

    Args:
        header: what emulates the primitives.

    Attributes:
        edit: changes a kernel's text before it is compiled.
        backwards: blocks of threads and warps run from the last to the first.
    """

    def __init__(self, header: Path = _HEADER) -> None:
        self._header = header
        self.edit: Callable[[str], str] = lambda text: text
        self.backwards = False

    def compiled_kernel(
        self,
        name: str,
        files: Sequence[str],
        constants: Mapping[str, int],
        launch: KernelLaunch = PLAIN_LAUNCH,
        header: Path | None = None,
    ) -> DeviceKernel:
        """In place of `ops.cuda.sources.compiled_kernel`; by another header if one is given."""
        own = [each for each in files if each not in _OF_PROCESSORS]
        text = self.edit(kernel_text(own, constants))
        kernel = host_kernel(text, name, header or self._header)

        def run(
            grid: tuple[int, int, int], block: tuple[int, int, int], args: list[object]
        ) -> None:
            kernel(grid[:2], block[0], args, launch.shared_bytes, backwards=self.backwards)  # type: ignore[arg-type]

        return run
