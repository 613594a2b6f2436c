"""FakeScript: what a FakeWorker does, as plain data that also travels as JSON."""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from luce.protocol.messages import ControlOp, FinishReason, LayerMemory, Limits, RefusalReason
from luce.protocol.sampling import HiddenRead, HiddenStates, TokenLogprobs

CrashPoint = Literal[
    "never", "start", "load", "submit", "admitted", "tokens", "drain", "evict", "reinstate"
]
"""Before Hello, while loading, instead of an answer, after Admitted, after k tokens, at drain,
while it is evicted or reinstated."""

Malformed = Literal["", "garbage", "too_large", "truncated", "version"]


class PromptReply(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What prompts with a certain token are answered with.

    Attributes:
        token: the token; anywhere in the prompt.
        reply: the answer's tokens.
    """

    token: int
    reply: list[int]


class FakeScript(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Every field has a default that behaves; a test sets the few it is about.

    Attributes:
        reply: tokens every request answers with; None echoes the prompt.
        prompt_replies: the first whose token is in the prompt answers in place of `reply`.
        logprobs: what is reported of each token of the reply to requests that ask; None: each
            token has -0.5 and is the likeliest, the next ones in the vocabulary follow.
        finish: how a reply that ran to its end finishes; `max_tokens` cuts with "length".
        token_delay_s: pause before each token.
        tokens_per_step: tokens in each delta.
        hold_after: tokens after which a request waits for `release`; None never waits.
        hold_again_after: more tokens than that, after which it waits once more.
        hold_until_file: what waits goes on without a `release` once this file is there; for a
            worker that is a process.
        late_cancel: a cancelled request retires with its next step instead of at once, as in an
            engine; one that waits for `release` then waits for that.
        fail_error: class name of `luce.errors`; each request fails with it after its tokens.
        load_s: how long loading takes.
        load_until_file: loading ends once this file is there; empty: by itself.
        load_error: class name of `luce.errors`; loading ends in a fatal Fault with it.
        refuse_next: how many submissions are refused with the three fields after it.
        crash: when the worker dies; `crash_tokens` is the k of "tokens".
        crash_once_file: the crash and the load error happen only while this file is absent;
            the first occurrence creates it. Lets a restarted process behave. Empty: always.
        stall_reading: after Load, read nothing more.
        malformed: send this instead of the first answer to a submission ("version": in Hello).
        ignore_shutdown: neither Shutdown nor SIGTERM ends the process; end of file does.
        weights_bytes: what it says its parameters take.
        layers: what it says its layers keep.
        num_layers, hidden_size: of its hidden states; those behind block k are all k.
        evict_s, reinstate_s: how long these take.
        hold_controls: of "evict" and "reinstate", those that wait for `release_control`.
        refuse_evict: how many evictions are refused, with `evict_error`.
        keeps_parked: weights parked in host memory stay there while the model serves.
        fail_reinstate: how many reinstatements fail, with `reinstate_error`.
        snapshots_lost: what each eviction says it could not keep.
    """

    max_concurrency: int = 4
    max_ctx: int = 4096
    kv_pool_tokens: int = 16384
    block_tokens: int = 16
    vocab_size: int = 256
    architecture: str = "fake"
    layers: LayerMemory | None = None
    num_layers: int = 24
    hidden_size: int = 3
    load_s: float = 0.0
    load_until_file: str = ""
    load_error: str = ""
    load_message: str = "the fake model does not load."
    reply: list[int] | None = None
    prompt_replies: list[PromptReply] = []
    logprobs: list[TokenLogprobs] | None = None
    finish: FinishReason = "stop"
    token_delay_s: float = 0.0
    tokens_per_step: int = 1
    hold_after: int | None = None
    hold_again_after: int | None = None
    hold_until_file: str = ""
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
    weights_bytes: int = 100
    evict_s: float = 0.0
    reinstate_s: float = 0.0
    hold_controls: list[ControlOp] = []
    refuse_evict: int = 0
    evict_error: str = "the fake model stays."
    keeps_parked: bool = False
    fail_reinstate: int = 0
    reinstate_error: str = "the fake model does not come back."
    snapshots_lost: int = 0

    def reply_to(self, prompt: list[int]) -> list[int]:
        """The tokens of the answer, before any limit cuts it."""
        for candidate in self.prompt_replies:
            if candidate.token in prompt:
                return list(candidate.reply)
        return list(prompt if self.reply is None else self.reply)

    def logprobs_of(self, index: int, token_id: int, count: int) -> TokenLogprobs:
        """What is reported of the reply's token `index` with the `count` likeliest ones."""
        if self.logprobs is not None:
            return self.logprobs[index]
        top = tuple((token_id + place) % self.vocab_size for place in range(count))
        return TokenLogprobs(-0.5, top, tuple(-0.5 - place for place in range(count)))

    def hidden_of(self, read: HiddenRead) -> HiddenStates:
        """What is read behind these blocks: their numbers, and halves of them as means."""
        rows = [[float(layer % self.num_layers)] * self.hidden_size for layer in read.layers]
        flat = [value for row in rows for value in row]
        halves = [value / 2 for value in flat] if read.wants_mean else []
        last, mean = (struct.pack(f"<{len(each)}f", *each) for each in (flat, halves))
        return HiddenStates(last, mean, 16 if read.keeps_prefix else 0)

    @property
    def limits(self) -> Limits:
        return Limits(
            max_ctx=self.max_ctx,
            max_concurrency=self.max_concurrency,
            kv_pool_tokens=self.kv_pool_tokens,
            block_tokens=self.block_tokens,
        )
