"""WorkerStream: the output of one admitted request, read by one task on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from luce.errors import LuceError
from luce.protocol.messages import CancelReason, Retired, SeqDelta

MAX_BUFFERED_TOKENS = 2**16
"""Token ids that wait for a reader before the request is cancelled as `slow_reader`; those of
likely tokens reported beside them count too."""


class WorkerStream:
    """Deltas of one request, ended exactly once: by a delta with `finish`, or by an error.

    Attributes:
        request_id: the request.
        cached_tokens: prompt tokens the prefix cache held.
        has_output: the worker has sent tokens.
        retired: done when the worker holds nothing of the request any more. It never fails: a
            worker that died has freed everything too, and gives a `Retired` with `error`.
    """

    def __init__(
        self, request_id: str, cached_tokens: int, send_cancel: Callable[[CancelReason], None]
    ) -> None:
        self.request_id = request_id
        self.cached_tokens = cached_tokens
        self.has_output = False
        self.retired: asyncio.Future[Retired] = asyncio.get_running_loop().create_future()
        self._send_cancel: Callable[[CancelReason], None] | None = send_cancel
        self._deltas: list[SeqDelta] = []
        self._buffered_tokens = 0
        self._error: LuceError | None = None
        self._ended = False
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._follower: tuple[Callable[[], None], contextvars.Context] | None = None
        self._is_announced = False

    async def next(self) -> list[SeqDelta]:
        """Wait for output; give everything that has arrived, oldest first.

        Returns:
            At least one delta; an empty list once the final one was given.

        Raises:
            ApiError: the request failed, or its worker died; given after what came before it,
                and again on every further call.
        """
        await self._arrived.wait()
        return self.take()

    def take(self) -> list[SeqDelta]:
        """What has arrived, without waiting; raises as `next` does."""
        if self._deltas:
            deltas, self._deltas, self._buffered_tokens = self._deltas, [], 0
            if not self._ended:
                self._arrived.clear()
            elif self._error is not None:
                self._announce()  # It is given apart from what came before it.
            return deltas
        if self._error is not None:
            raise self._error
        return []

    def follow(self, callback: Callable[[], None]) -> None:
        """Call back, in this context, each time there is something to `take`; once for what
        arrives together. A task switch for each token would cost more than its text."""
        self._follower = (callback, contextvars.copy_context())
        if self._arrived.is_set():
            self._announce()

    def unfollow(self) -> None:
        """Undo `follow`."""
        self._follower = None

    def cancel(self, reason: CancelReason) -> None:
        """Ask the worker to stop, once; what it had sent may still be read."""
        send, self._send_cancel = self._send_cancel, None
        if send is not None and not self.retired.done():
            send(reason)

    # --- the handle's side ---------------------------------------------------------------

    def push(self, delta: SeqDelta) -> None:
        """A step added to this request. Never blocks: a reader too slow is cancelled."""
        if self._ended:
            return
        self._buffered_tokens += len(delta.token_ids)
        self._buffered_tokens += sum(len(entry.top_ids) for entry in delta.logprobs or ())
        self.has_output = self.has_output or bool(delta.token_ids)
        if self._buffered_tokens > MAX_BUFFERED_TOKENS:
            self._finish_slow_reader()
        elif delta.finish == "error":
            # Retired brings the reason; until then the tokens are all there is to say.
            self._append(SeqDelta(delta.request_id, delta.token_ids, logprobs=delta.logprobs))
        else:
            self._append(delta)
            self._ended = delta.finish is not None

    def fail(self, error: LuceError) -> None:
        """End with an error, unless the stream has ended."""
        if not self._ended:
            self._error = error
            self._ended = True
            self._announce()

    def retire(self, retired: Retired) -> None:
        """The worker holds nothing more; ends the stream if no delta did."""
        if not self._ended:
            self._append(SeqDelta(self.request_id, [], retired.finish))
            self._ended = True
        if not self.retired.done():
            self.retired.set_result(retired)

    def _append(self, delta: SeqDelta) -> None:
        if delta.token_ids or delta.finish is not None:
            self._deltas.append(delta)
            self._announce()

    def _announce(self) -> None:
        self._arrived.set()
        if self._follower is not None and not self._is_announced:
            self._is_announced = True
            self._loop.call_soon(self._call_follower, context=self._follower[1])

    def _call_follower(self) -> None:
        self._is_announced = False
        if self._follower is not None:
            self._follower[0]()

    def _finish_slow_reader(self) -> None:
        self._append(SeqDelta(self.request_id, [], "cancelled"))
        self._ended = True
        self.cancel("slow_reader")
