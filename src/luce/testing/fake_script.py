"""FakeScript: what a FakeWorker does, as plain data that also travels as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from luce.protocol.messages import FinishReason, Limits, RefusalReason

CrashPoint = Literal["never", "start", "load", "submit", "admitted", "tokens", "drain"]
"""Before Hello, while loading, instead of an answer, after Admitted, after k tokens, at drain."""

Malformed = Literal["", "garbage", "too_large", "truncated", "version"]


class FakeScript(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Every field has a default that behaves; a test sets the few it is about.

    Attributes:
        reply: tokens every request answers with; None echoes the prompt.
        finish: how a reply that ran to its end finishes; `max_tokens` cuts with "length".
        token_delay_s: pause before each token.
        tokens_per_step: tokens in each delta.
        hold_after: tokens after which a request waits for `release`; None never waits.
        late_cancel: a cancelled request retires with its next step instead of at once, as in an
            engine; one that waits for `release` then waits for that.
        fail_error: class name of `luce.errors`; each request fails with it after its tokens.
        load_error: class name of `luce.errors`; loading ends in a fatal Fault with it.
        refuse_next: how many submissions are refused with the three fields after it.
        crash: when the worker dies; `crash_tokens` is the k of "tokens".
        crash_once_file: the crash and the load error happen only while this file is absent;
            the first occurrence creates it. Lets a restarted process behave. Empty: always.
        stall_reading: after Load, read nothing more.
        malformed: send this instead of the first answer to a submission ("version": in Hello).
        ignore_shutdown: neither Shutdown nor SIGTERM ends the process; end of file does.
    """

    max_concurrency: int = 4
    max_ctx: int = 4096
    kv_pool_tokens: int = 16384
    block_tokens: int = 16
    vocab_size: int = 256
    architecture: str = "fake"
    load_s: float = 0.0
    load_error: str = ""
    load_message: str = "the fake model does not load."
    reply: list[int] | None = None
    finish: FinishReason = "stop"
    token_delay_s: float = 0.0
    tokens_per_step: int = 1
    hold_after: int | None = None
    late_cancel: bool = False
    fail_error: str = ""
    cached_tokens: int = 0
    refuse_next: int = 0
    refuse_reason: RefusalReason = "capacity"
    refuse_error: str = ""
    refuse_detail: str = ""
    crash: CrashPoint = "never"
    crash_tokens: int = 1
    crash_once_file: str = ""
    stall_reading: bool = False
    malformed: Malformed = ""
    ignore_shutdown: bool = False

    @property
    def limits(self) -> Limits:
        return Limits(
            max_ctx=self.max_ctx,
            max_concurrency=self.max_concurrency,
            kv_pool_tokens=self.kv_pool_tokens,
            block_tokens=self.block_tokens,
        )
