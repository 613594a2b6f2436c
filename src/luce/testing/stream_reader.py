"""Reads a WorkerStream as the listener does, by following it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from luce.errors import LuceError
from luce.protocol.messages import SeqDelta
from luce.workers.stream import WorkerStream


async def batches(stream: WorkerStream) -> AsyncIterator[list[SeqDelta]]:
    """What arrives together, until the end.

    Raises:
        LuceError: the request failed, or its worker died; after what came before it.
    """
    arrived: asyncio.Queue[list[SeqDelta] | LuceError] = asyncio.Queue()

    def take() -> None:
        try:
            arrived.put_nowait(stream.take())
        except LuceError as error:
            arrived.put_nowait(error)

    stream.follow(take)
    try:
        while batch := await arrived.get():
            if isinstance(batch, LuceError):
                raise batch
            yield batch
            if batch[-1].finish is not None:
                return
    finally:
        stream.unfollow()
