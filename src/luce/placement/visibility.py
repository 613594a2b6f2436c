"""Which devices a worker sees, and as which index, by the variables of its environment.

Workers get `CUDA_DEVICE_ORDER=PCI_BUS_ID` (`workers.spawn`), so that without other variables an
index means the same device to them and to us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
HIP_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The first filters what the second sees. Source: the ROCm manual, GPU isolation."""


def visible_order(
    uuids: Sequence[str], variables: Sequence[str], environment: Mapping[str, str]
) -> list[int]:
    """Positions in `uuids` of the devices a process sees, in the order of its indices.

    A variable lists indices or UUIDs (or their beginnings); it ends at the first entry that names
    nothing, as the runtimes have it. Source: CUDA C++ Programming Guide, environment variables.
    """
    order = list(range(len(uuids)))
    for variable in variables:
        text = environment.get(variable)
        if text is not None:
            order = _selected(order, uuids, text)
    return order


def _selected(order: list[int], uuids: Sequence[str], text: str) -> list[int]:
    selected: list[int] = []
    for word in text.split(","):
        position = _position(word.strip(), order, uuids)
        if position is None or position in selected:
            break
        selected.append(position)
    return selected


def _position(word: str, order: list[int], uuids: Sequence[str]) -> int | None:
    if word.isascii() and word.isdigit():
        return order[int(word)] if int(word) < len(order) else None
    named = [position for position in order if word and uuids[position].startswith(word)]
    return named[0] if len(named) == 1 else None
