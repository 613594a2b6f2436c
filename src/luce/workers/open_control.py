"""OpenControl: one operation on a whole worker, from Control to ControlDone."""

from __future__ import annotations

import asyncio

from luce.errors import ApiError, InternalError
from luce.protocol import messages as wire


class OpenControl:
    """Turns the worker's answer into a result or an error.

    Attributes:
        op: what was asked for.
        done: what whoever asked awaits.
    """

    def __init__(self, op: wire.ControlOp) -> None:
        self.op = op
        self.done: asyncio.Future[wire.ControlDone] = asyncio.get_running_loop().create_future()

    def answer(self, news: wire.ControlDone) -> None:
        """The worker is done; whoever asked may have left."""
        if self.done.done():
            return
        if news.error:
            self.done.set_exception(InternalError(news.error))
        else:
            self.done.set_result(news)

    def lose(self, error: ApiError) -> None:
        """The worker died."""
        if not self.done.done():
            self.done.set_exception(error)
