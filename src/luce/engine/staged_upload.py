"""Fills tensors of a device by several threads, each through pinned memory of its own.

A piece is decoded (or read from the file's map), copied to pinned memory and sent, while other
threads do the same: reading, decoding and the bus work at the same time. Peak host memory is the
threads' buffers and one decoded piece each.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from luce.engine.device import UploadLane

Piece = tuple[Callable[[], torch.Tensor], torch.Tensor]
"""Makes the values on the host; where they go."""

_MAX_THREADS = 8


class StagedUpload:
    """Threads and pinned buffers, for the time of loading.

    Args:
        device: where the tensors are.
        threads: at most; by default as many as there are cores, up to 8.
    """

    def __init__(self, device: torch.device, threads: int | None = None) -> None:
        count = threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="upload")
        self._lanes: queue.SimpleQueue[UploadLane] = queue.SimpleQueue()
        for _ in range(count):
            self._lanes.put(UploadLane(device))

    def run(self, pieces: Iterable[Piece]) -> None:
        """Fill all targets; returns when they are filled.

        Raises:
            Exception: whatever making a piece's values raised, the first of them.
        """
        pending = [self._pool.submit(self._put, make, target) for make, target in pieces]
        for each in pending:
            each.result()

    def close(self) -> None:
        """End the threads and free their buffers."""
        self._pool.shutdown()
        self._lanes = queue.SimpleQueue()

    def _put(self, make: Callable[[], torch.Tensor], target: torch.Tensor) -> None:
        with torch.inference_mode():
            values = make()
            lane = self._lanes.get()
            try:
                lane.put(values, target)
            finally:
                self._lanes.put(lane)
