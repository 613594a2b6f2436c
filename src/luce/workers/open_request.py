"""OpenRequest: one request from Submit until the worker holds nothing of it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from luce.errors import ApiError, InternalError, from_wire
from luce.protocol import messages as wire
from luce.workers.stream import WorkerStream


class WorkerRefusal(Exception):
    """The worker did not admit the request. `capacity` may be tried again or elsewhere.

    Attributes:
        reason: why, in the protocol's words.
        error: what to tell the client, for `never_fits` and `failed`; None otherwise.
        detail: the worker's sentence.
    """

    def __init__(
        self, reason: wire.RefusalReason, error: ApiError | None = None, detail: str = ""
    ) -> None:
        super().__init__(detail or reason)
        self.reason = reason
        self.error = error
        self.detail = detail


class OpenRequest:
    """Turns the worker's answers into one outcome: refused, or a stream that ends once.

    Attributes:
        admitted: what the submitter awaits.
        settled: done when the worker holds nothing of the request any more.
        stream: the output; None until admitted, or if the submitter left before.
    """

    def __init__(self, request_id: str, num_prompt_tokens: int) -> None:
        loop = asyncio.get_running_loop()
        self.admitted: asyncio.Future[WorkerStream] = loop.create_future()
        self.settled: asyncio.Future[None] = loop.create_future()
        self.stream: WorkerStream | None = None
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens

    def admit(self, cached_tokens: int, send_cancel: Callable[[wire.CancelReason], None]) -> None:
        """The worker took it; a submitter that left has sent its Cancel already."""
        if not self.admitted.done():
            self.stream = WorkerStream(self._request_id, cached_tokens, send_cancel)
            self.admitted.set_result(self.stream)

    def refuse(self, news: wire.Refused) -> None:
        """The worker did not take it."""
        error = None
        if news.reason in ("failed", "never_fits"):
            default = "InternalError" if news.reason == "failed" else "ContextLengthExceeded"
            error = _api_error(news.error or default, news.detail)
        self._deny(WorkerRefusal(news.reason, error, news.detail))
        self.settled.set_result(None)

    def retire(self, news: wire.Retired) -> None:
        """The worker is done with it."""
        failed = bool(news.error) or news.finish == "error"
        error = _api_error(news.error or "InternalError", news.detail) if failed else None
        if self.stream is None:
            # Only a worker that skipped Admitted gets here while the submitter still waits.
            self._deny(error or InternalError("The model ended a request it had not started."))
        else:
            if error is not None:
                self.stream.fail(error)
            self.stream.retire(news)
        self.settled.set_result(None)

    def lose(self, error: ApiError) -> None:
        """The worker died; its memory is gone, so it holds nothing."""
        if self.stream is None:
            self._deny(error)
        else:
            self.stream.fail(error)
            self.stream.retire(self._lost_retirement(self.stream.cached_tokens, error))
        self.settled.set_result(None)

    def _deny(self, error: Exception) -> None:
        if not self.admitted.done():
            self.admitted.set_exception(error)

    def _lost_retirement(self, cached_tokens: int, error: ApiError) -> wire.Retired:
        usage = wire.Usage(
            prompt_tokens=self._num_prompt_tokens, cached_tokens=cached_tokens, completion_tokens=0
        )
        timings = wire.WorkerTimings(admitted_ns=0)
        name = type(error).__name__
        return wire.Retired(self._request_id, "error", usage, timings, name, str(error))


def _api_error(name: str, detail: str) -> ApiError:
    error = from_wire(name, detail or "The model failed on this request.")
    return error if isinstance(error, ApiError) else InternalError(str(error))
