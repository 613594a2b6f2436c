"""Fills tensors of a device by several threads, each through pinned memory of its own.

A piece is read from the file's map (or decoded), copied to pinned memory, sent, and put in place
by work of the device, while other threads do the same with other pieces: reading, decoding, the
bus and the device work at the same time, across the borders of tensors. Peak host memory is the
threads' buffers and one decoded piece each.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from luce.engine.device import UploadLane

_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a tensor.

    Attributes:
        make: their values on the host, contiguous.
        place: puts them where they belong, given the values on the device.
        nbytes: what they take in the file, for progress.
    """

    make: Callable[[], torch.Tensor]
    place: Callable[[torch.Tensor], None]
    nbytes: int


class StagedUpload:
    """Threads and pinned buffers, for the time of loading.

    Args:
        device: where the tensors are.
        threads: at most; by default as many as there are cores, up to 8.
    """

    def __init__(self, device: torch.device, threads: int | None = None) -> None:
        count = threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="upload")
        self._pending: deque[tuple[Future[None], int]] = deque()
        self._lanes: queue.SimpleQueue[UploadLane] = queue.SimpleQueue()
        for _ in range(count):
            self._lanes.put(UploadLane(device))

    def add(self, piece: Piece) -> None:
        """Have a piece put in place, at some time before `finish` returns."""
        self._pending.append((self._pool.submit(self._put, piece), piece.nbytes))

    def finish(self, report: Callable[[int], None]) -> None:
        """Wait for all pieces; `report` hears of the bytes of each.

        Raises:
            Exception: whatever making a piece's values raised, the first of them.
        """
        while self._pending:
            done, nbytes = self._pending.popleft()
            done.result()
            report(nbytes)

    def close(self) -> None:
        """End the threads, dropping what they have not begun, and free their buffers."""
        self._pool.shutdown(cancel_futures=True)
        self._pending.clear()
        self._lanes = queue.SimpleQueue()

    def _put(self, piece: Piece) -> None:
        with torch.inference_mode():
            values = piece.make()
            lane = self._lanes.get()
            try:
                lane.put(values, piece.place)
            finally:
                self._lanes.put(lane)
