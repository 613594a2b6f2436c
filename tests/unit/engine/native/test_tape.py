"""Writing operations down: what may be, and what memory it takes."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from random_blocks import activations, random_matrix

from luce.engine.native.tape import Program
from luce.engine.ops.cpu.native import NativeLinear, NativeOps


def make(ops: NativeOps, rows: int = 64) -> NativeLinear:
    linear = ops.linear([random_matrix("Q8_0", rows, 64).stored], None)
    assert linear is not None
    return linear


def record(ops: NativeOps, layers: int) -> tuple[Program, torch.Tensor]:
    table, linear = ops.embedding(random_matrix("Q8_0", 50, 64).stored), make(ops)
    assert table is not None

    def work() -> torch.Tensor:
        hidden = table.forward(torch.zeros(9, dtype=torch.int32))
        for _ in range(layers):
            hidden = linear.add_to(hidden, linear(hidden))
        return hidden

    recorded = ops.tape.record(work)
    assert recorded is not None
    return recorded


def test_nothing_runs_while_recording(ops: NativeOps) -> None:
    program, result = record(ops, 1)
    ids = torch.tensor([3, 4, 49], dtype=torch.int32)
    ops.tape.step.num_tokens, ops.tape.step.input_ids = 3, ids.data_ptr()
    result.fill_(7)
    assert bool((result == 7).all())
    ops.tape.play(program)
    assert not bool((result[:3] == 7).any())
    assert bool((result[3:] == 7).all()), "rows beyond the step's are left alone"


def test_memory_does_not_grow_with_the_layers(ops: NativeOps) -> None:
    arenas = []
    for layers in (2, 12):
        program, _ = record(ops, layers)
        memory = [each for each in program.kept if isinstance(each, np.ndarray)]
        arenas.append(sum(each.nbytes for each in memory))
    assert arenas[0] == arenas[1]


def test_another_tensor_cannot_be_recorded(ops: NativeOps) -> None:
    linear = make(ops)
    foreign = activations(4, 64)
    assert ops.tape.record(lambda: linear(foreign)) is None
    assert ops.tape.record(lambda: foreign) is None
    assert not ops.tape.is_recording


def test_a_part_of_a_tensor_is_known_by_the_whole(ops: NativeOps) -> None:
    """Strided columns, and numbers of another type in the same memory."""
    tape, foreign = ops.tape, activations(4, 64)
    assert tape.part_address(foreign[:, 3:]) == foreign.data_ptr() + 12
    own: list[int] = []

    def work() -> torch.Tensor:
        whole = tape.empty(4, 64)
        parts = (whole[:, 3:], whole.view(torch.int64)[:, 1:])
        own.extend(tape.part_address(part) - whole.data_ptr() for part in parts)
        return whole

    assert tape.record(work) is not None
    assert own == [12, 8]

    def mixed() -> torch.Tensor:
        tape.part_address(foreign[:, 3:])
        return tape.empty(4, 64)

    assert tape.record(mixed) is None


def test_sequences_of_a_step(ops: NativeOps) -> None:
    """Laid out once for all layers of a step, anew for the next."""
    step, starts = ops.tape.step, (0, 2, 7)
    for slots in ((5, 3), (1, 0)):
        ops.tape.set_sequences(slots, starts)
        assert step.num_sequences == 2
        found = [(ctypes.c_int32 * 3).from_address(step.starts or 0)[:]]
        found.append((ctypes.c_int32 * 2).from_address(step.state_slots or 0)[:])
        assert found == [list(starts), list(slots)]
        address = step.starts
        ops.tape.set_sequences(slots, starts)
        assert step.starts == address


def test_recording_ends_with_an_error(ops: NativeOps) -> None:
    linear, x = make(ops), activations(4, 64)
    expected = linear(x)

    def broken() -> torch.Tensor:
        raise ValueError

    try:
        ops.tape.record(broken)
    except ValueError:
        assert torch.equal(linear(x), expected)
    else:
        raise AssertionError("the error is not for the tape to keep")
