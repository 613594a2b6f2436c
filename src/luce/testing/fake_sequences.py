"""What a FakeWorker holds: scripted sequences, and admission with a worker's arithmetic."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from luce.kv.spec import blocks_for
from luce.protocol.messages import FinishReason, Refused, Retired, Submit, Usage, WorkerTimings
from luce.testing.byte_tokenizer import unpack_prompt
from luce.testing.fake_script import FakeScript


@dataclass
class FakeSequence:
    """One admitted request.

    Attributes:
        due: the monotonic second of its next step.
        holds: counts of tokens at which it still has to wait for a release.
    """

    submit: Submit
    reply: list[int]
    finish: FinishReason
    num_blocks: int
    admitted_ns: int
    due: float
    sent: int = 0
    is_held: bool = False
    holds: list[int] = field(default_factory=list)
    is_cancelled: bool = False
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.submit.prompt) // 4

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def is_done(self) -> bool:
        return self.sent >= len(self.reply)

    def retired(self, finish: FinishReason, error: str, detail: str, cached: int) -> Retired:
        now = time.monotonic_ns()
        return Retired(
            self.request_id,
            finish,
            Usage(
                prompt_tokens=self.num_prompt_tokens,
                cached_tokens=cached,
                completion_tokens=self.sent,
            ),
            WorkerTimings(
                admitted_ns=self.admitted_ns,
                first_token_ns=now if self.sent else 0,
                last_token_ns=now if self.sent else 0,
                retired_ns=now,
            ),
            error,
            detail,
        )


class FakePool:
    """Rows and blocks: a sequence reserves its prompt and one block more, as a worker does.

    Growth past the reservation takes free blocks while there are any; a FakeWorker never
    preempts.
    """

    def __init__(self, script: FakeScript) -> None:
        self._script = script
        self.sequences: dict[str, FakeSequence] = {}
        self.total_blocks = script.kv_pool_tokens // script.block_tokens
        self.free_blocks = self.total_blocks

    def admit(self, submit: Submit) -> FakeSequence | Refused:
        """Take the sequence in, or say why not."""
        script, prompt = self._script, unpack_prompt(submit.prompt)
        if not prompt or not all(0 <= token < script.vocab_size for token in prompt):
            return _failed(submit, "The prompt is empty or has ids outside the vocabulary.")
        room = script.limits.max_seq_tokens - len(prompt)
        if room < 1:
            detail = f"{len(prompt)} prompt tokens; {script.limits.max_seq_tokens} fit."
            return Refused(submit.request_id, "never_fits", "ContextLengthExceeded", detail)
        num_blocks = min(
            blocks_for(len(prompt), script.block_tokens) + 1,
            blocks_for(script.limits.max_seq_tokens, script.block_tokens),
        )
        is_full = len(self.sequences) >= script.max_concurrency
        if is_full or num_blocks > self.free_blocks:
            return Refused(submit.request_id, "capacity")
        return self._insert(submit, prompt, room, num_blocks)

    def grow(self, sequence: FakeSequence) -> None:
        """Account for the blocks the sequence's tokens now need."""
        tokens = sequence.num_prompt_tokens + sequence.sent
        missing = blocks_for(tokens, self._script.block_tokens) - sequence.num_blocks
        taken = min(max(missing, 0), self.free_blocks)
        sequence.num_blocks += taken
        self.free_blocks -= taken

    def release(self, sequence: FakeSequence) -> None:
        del self.sequences[sequence.request_id]
        self.free_blocks += sequence.num_blocks

    def _insert(
        self, submit: Submit, prompt: list[int], room: int, num_blocks: int
    ) -> FakeSequence:
        script = self._script
        reply = script.reply_to(prompt) if submit.sampling.hidden is None else []
        holds = [at for at in (script.hold_after, script.hold_again_after) if at is not None]
        limit = min(room, submit.sampling.max_tokens)
        sequence = FakeSequence(
            submit=submit,
            reply=reply[:limit],
            finish="length" if len(reply) > limit else script.finish,
            num_blocks=num_blocks,
            admitted_ns=time.monotonic_ns(),
            due=time.monotonic() + script.token_delay_s,
            is_held=0 in holds,
            holds=holds,
        )
        self.sequences[submit.request_id] = sequence
        self.free_blocks -= num_blocks
        return sequence


def _failed(submit: Submit, detail: str) -> Refused:
    return Refused(submit.request_id, "failed", "InvalidRequest", detail)
