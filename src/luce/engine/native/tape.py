"""Where native operations go: to the threads at once, or onto a tape that is played many times.

While a model is recorded its forward pass runs on tensors of the most rows a step may have, and
nothing is computed: each operation is written down with the addresses of its tensors. A step then
is one call. Operations keep no number of rows; that is the step's.

Memory of the recorded pass comes from an arena. A tensor's memory is used again once PyTorch has
freed the tensor and all views of it, as it would be in a pass that computes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.native.library import GROUP, NativeLibrary, Op, Rows, Step

_ALIGNMENT = 64
_GROUP_BYTES = 32


class _NotNativeError(Exception):
    """Something of the pass being recorded is computed elsewhere."""


class _Lease(np.ndarray):
    """Memory of the arena; PyTorch drops it with the last tensor that looks at it."""


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Rounded activations with what is needed to multiply them: `luce_rows` and its memory."""

    struct: Rows
    memory: npt.NDArray[np.uint8]

    @property
    def address(self) -> int:
        """Where the struct is."""
        return ctypes.addressof(self.struct)


@dataclass(slots=True)
class _Recording:
    """A forward pass, written down.

    Attributes:
        ops: in order.
        kept: what their addresses point to.
        free: memory that may be used again, by size.
        twins: the rounded rows of a tensor, by its address.
        addresses: where tensors of the pass may begin.
    """

    ops: list[Op] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)
    free: dict[int, list[npt.NDArray[np.uint8]]] = field(default_factory=dict)
    twins: dict[int, RoundedRows] = field(default_factory=dict)
    addresses: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded pass: its operations and all they point to."""

    ops: ctypes.Array[Op]
    kept: tuple[object, ...]


class Tape:
    """Runs native operations, or records them.

    Args:
        library: whose kernels.

    Attributes:
        library: as given.
        step: what the operations know of the batch.
        is_proven: a recording of the model's operations was compared with them, and is the same.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library
        self._recording: _Recording | None = None
        self.step = Step()
        self._sequences: tuple[object, ...] = (None, None)
        self.is_proven = False

    @property
    def is_recording(self) -> bool:
        """Whether operations are written down instead of run."""
        return self._recording is not None

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Program, torch.Tensor] | None:
        """Write down what `work` does.

        Returns:
            It, and the tensor in which its result will be; None if other operations take part.
        """
        assert self._recording is None
        self._recording = recording = _Recording()
        try:
            result = work()
            self.address(result)
        except _NotNativeError:
            return None
        finally:
            self._recording = None
        ops = (Op * len(recording.ops))(*recording.ops)
        return Program(ops, (*recording.kept, result)), result

    def play(self, program: Program) -> None:
        """Run a recorded pass on the current step."""
        self.library.run(program.ops, self.step)

    def emit(self, num_tokens: int, ops: list[Op], kept: tuple[object, ...]) -> None:
        """Run operations on so many tokens, one after the other, or write them down.

        Args:
            num_tokens: rows of their tensors.
            ops: what to do.
            kept: what they point to beside tensors and rows from here.
        """
        if self._recording is not None:
            self._recording.ops.extend(ops)
            self._recording.kept.extend(kept)
            return
        self.step.num_tokens = num_tokens
        self.library.run((Op * len(ops))(*ops), self.step)

    def address(self, tensor: torch.Tensor) -> int:
        """Where a tensor of the pass is, f32 and contiguous.

        While recording it must be one of `empty`: another's memory would be gone at play.
        """
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        address = tensor.data_ptr()
        if self._recording is not None and address not in self._recording.addresses:
            raise _NotNativeError
        return address

    def part_address(self, tensor: torch.Tensor) -> int:
        """Where a part of a tensor of the pass is, of any type and stride; else as `address`."""
        start = tensor.untyped_storage().data_ptr()
        if self._recording is not None and start not in self._recording.addresses:
            raise _NotNativeError
        return tensor.data_ptr()

    def set_sequences(self, slots: tuple[int, ...], starts: tuple[int, ...]) -> None:
        """Say whose states the step advances.

        Args:
            slots: of each sequence.
            starts: where their tokens begin, and where the last one's end.
        """
        if self._sequences[0] is slots and self._sequences[1] is starts:
            return
        flat = np.array((*starts, *slots), dtype=np.int32)
        # The addresses below are its.
        self._sequences = (slots, starts, flat)
        self.step.num_sequences = len(slots)
        self.step.starts = flat.ctypes.data
        self.step.state_slots = flat.ctypes.data + flat.itemsize * len(starts)

    def empty(self, rows: int, columns: int) -> torch.Tensor:
        """An f32 tensor to be filled."""
        if self._recording is None:
            return torch.empty(rows, columns)
        memory = self._lease(4 * rows * columns)
        tensor = torch.from_numpy(memory[: 4 * rows * columns].view(np.float32))
        self._recording.twins.pop(tensor.data_ptr(), None)
        self._recording.addresses.add(tensor.data_ptr())
        return tensor.view(rows, columns)

    def rounded(self, rows: int, columns: int) -> RoundedRows:
        """Rows to be filled with rounded activations."""
        groups = columns // GROUP
        code_bytes = 2 * rows * columns
        nbytes = code_bytes + rows * groups * _GROUP_BYTES
        memory = self._lease(nbytes) if self._recording is not None else _aligned(nbytes)
        struct = Rows(columns, memory.ctypes.data, memory.ctypes.data + code_bytes)
        if self._recording is not None:
            self._recording.kept.append(struct)
        return RoundedRows(struct, memory)

    def set_twin(self, tensor: torch.Tensor, rows: RoundedRows) -> None:
        """Know that `rows` are filled with `tensor` by the operation that fills it."""
        if self._recording is not None:
            self._recording.twins[tensor.data_ptr()] = rows

    def twin(self, tensor: torch.Tensor) -> RoundedRows | None:
        """The rounded rows of a tensor, if there are any."""
        if self._recording is None or not tensor.is_contiguous():
            return None
        return self._recording.twins.get(tensor.data_ptr())

    def _lease(self, nbytes: int) -> npt.NDArray[np.uint8]:
        assert self._recording is not None
        size = -(-nbytes // 4096) * 4096
        free = self._recording.free.setdefault(size, [])
        if free:
            memory = free.pop()
        else:
            memory = _aligned(size)
            self._recording.kept.append(memory)
        lease = memory.view(_Lease)
        weakref.finalize(lease, free.append, memory)
        return lease


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    room = np.empty(nbytes + _ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes]
