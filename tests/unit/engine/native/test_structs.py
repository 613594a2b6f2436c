"""What Python knows of the library's types and numbers is what its headers say."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from luce.engine.native import build, layer_structs, library

STRUCTS = {
    "luce_matrix": library.Matrix,
    "luce_linear": library.LinearParts,
    "luce_rows": library.Rows,
    "luce_heads": library.Heads,
    "luce_cache": library.Cache,
    "luce_choice": library.Choice,
    "luce_step": library.Step,
    "luce_op": library.Op,
    "luce_dense": layer_structs.Dense,
    "luce_delta": layer_structs.Delta,
    "luce_mixture": layer_structs.Mixture,
    "luce_shared": layer_structs.Shared,
}
OPERATIONS = {
    library: "EMBED NORM QUANTISE PRODUCT GATED PLACE ATTEND CHOOSE",
    layer_structs: (
        "DENSE ROUNDED_NORM SPLIT_GATES GATE_HEADS SILU_MUL CONVOLVE RECUR ROUTE GROUP_ROWS "
        "EXPERT_GATED EXPERT_DOWN ADD_MIXTURE"
    ),
}
NUMBERS = {
    "LUCE_TILE": library.TILE,
    "LUCE_GROUP": library.GROUP,
    "LUCE_SEGMENT": library.SEGMENT,
    "LUCE_SPAN": library.SPAN,
    "LUCE_UNIT_ROWS": library.UNIT_ROWS,
    "LUCE_MOST_HEAD_DIM": library.MOST_HEAD_DIM,
    "LUCE_PARTS": library.MAX_PARTS,
    "LUCE_MOST_DIM": layer_structs.MAX_DIM,
    "LUCE_MOST_TAPS": layer_structs.MAX_TAPS,
    "LUCE_MOST_EXPERTS": layer_structs.MAX_EXPERTS,
    "LUCE_MOST_EXPERT_COLUMNS": layer_structs.MAX_EXPERT_COLUMNS,
    **{
        f"LUCE_KV_{name.upper().removesuffix('_0')}": number
        for number, name in enumerate(library.KV_TYPES)
    },
}


def known() -> dict[str, int]:
    """By C expression."""
    found = dict(NUMBERS)
    for module, names in OPERATIONS.items():
        found.update({f"LUCE_{name}": getattr(module, name) for name in names.split()})
    for name, struct in STRUCTS.items():
        found[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            # `in` cannot be an attribute in Python.
            place = f"{name}, {field.rstrip('_')}"
            found[f"offsetof({place})"] = getattr(struct, field).offset
    return found


def test_structs_and_numbers_are_those_of_the_headers(tmp_path: Path) -> None:
    try:
        compiler = build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    lines = "\n".join(f'printf("%ld\\n", (long)({each}));' for each in known())
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "layers.h"\nint main(void) {{\n{lines}\n}}\n')
    program = tmp_path / "layout"
    command = [compiler, "-std=gnu11", f"-I{build.FOLDER}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=100)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=100, check=True)
    said = dict(zip(known(), map(int, done.stdout.split()), strict=True))
    assert said == known()
