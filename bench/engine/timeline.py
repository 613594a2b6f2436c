"""Kernels of a step one after the other: by how much each one's end follows the end before it.

Kernels that start early show their waiting in their own time; what a step gains if a kernel is
faster is in the distances of ends alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch

_BEGINS = "_begin_kernel"
"""Of a step of decode rows; what fetches the lanes of many stands before it."""


class Recorded(NamedTuple):
    """Something that the device did; nanoseconds."""

    name: str
    start: int
    end: int


def recorded(work: Callable[[], object]) -> list[Recorded]:
    """Everything the device does for `work`, by its end."""
    cuda = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[cuda]) as profile:
        work()
        torch.cuda.synchronize()
    events = profile.profiler.kineto_results.events()
    found = [
        Recorded(each.name(), each.start_ns(), each.start_ns() + each.duration_ns())
        for each in events
        if each.device_type().name == "CUDA"
    ]
    return sorted(found, key=lambda each: each.end)


def steps_of(events: list[Recorded]) -> Iterator[list[Recorded]]:
    """Runs that begin as a step does."""
    starts = [at for at, each in enumerate(events) if each.name.startswith(_BEGINS)]
    for first, stop in pairwise(starts):
        yield events[first:stop]


def show_timeline(name: str, work: Callable[[], object]) -> None:
    """Print the steps' kernels: distance of ends and own time, medians over alike steps."""
    steps = list(steps_of(recorded(work)))
    if not steps:
        print(f"{name}: nothing recorded")
        return
    length = statistics.mode(len(each) for each in steps)
    alike = [each for each in steps if len(each) == length]
    whole = statistics.median(step[-1].end - step[0].end for step in alike)
    print(
        f"{name}: {len(alike)} alike of {len(steps)} steps, {whole / 1e3:.1f} us from first to last"
    )
    for at in range(1, length):
        apart = statistics.median(step[at].end - step[at - 1].end for step in alike)
        own = statistics.median(step[at].end - step[at].start for step in alike)
        print(f"    +{apart / 1e3:7.2f}  own {own / 1e3:7.2f}  {alike[0][at].name[:60]}")
