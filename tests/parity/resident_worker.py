"""A worker without its process: a loaded model, its scheduler and the loop, fed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from luce.protocol import messages as wire
from luce.protocol.sampling import HiddenRead, HiddenStates, SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.worker.load import load_model
from luce.worker.loop import WorkerLoop
from luce.worker.ports import Incoming, LoopOptions


class Inbox:
    """A mailbox that leads nowhere."""

    def __init__(self) -> None:
        self.waiting: list[Incoming] = []
        self.sent: list[wire.ToListener] = []

    def receive(self, *, wait: bool) -> list[Incoming]:
        messages, self.waiting = self.waiting, []
        return messages

    def post(self, message: Incoming) -> None:
        self.waiting.append(message)

    def send(self, message: wire.ToListener) -> None:
        self.sent.append(message)


class ResidentWorker:
    """Serves requests and control operations, one after the other."""

    def __init__(self, path: Path, **spec: object) -> None:
        self.spec = wire.LoadSpec(name="m", path=str(path), threads=1, **spec)  # type: ignore[arg-type]
        self.model = load_model(self.spec, lambda *_: None)
        self.post = Inbox()
        self._clock = 0
        ready = self.model.ready
        sizes = (ready.num_layers, ready.hidden_size)
        options = LoopOptions(ready.vocab_size, self.model.depth, self._now, *sizes)
        self.loop = WorkerLoop(self.model.engine, self.model.scheduler, self.post, options)
        self._count = 0

    def close(self) -> None:
        self.loop._grammars.close()
        self.model.engine.close()

    def turn(self, *messages: Incoming) -> list[wire.ToListener]:
        """Handle these; returns what came of it."""
        self.post.sent.clear()
        for message in messages:
            self.loop._handle(message)
        while self.model.scheduler.has_work:
            self.loop._advance()
        self.model.scheduler.check_integrity()
        return list(self.post.sent)

    def generate(self, prompt: Sequence[int], **sampling: object) -> tuple[list[int], int]:
        """Tokens of a greedy answer, and how many prompt tokens were found in a cache."""
        self._count += 1
        params = SamplingParams(**{"max_tokens": 8, **sampling})  # type: ignore[arg-type]
        sent = self.turn(wire.Submit(f"r{self._count}", pack_prompt(prompt), params))
        admitted = next(each for each in sent if isinstance(each, wire.Admitted))
        outputs = [each for each in sent if isinstance(each, wire.StepOutput)]
        tokens = [token for each in outputs for delta in each.deltas for token in delta.token_ids]
        return tokens, admitted.cached_tokens

    def read(self, *requests: tuple[Sequence[int], HiddenRead]) -> list[HiddenStates]:
        """Hidden states of several prompts, read side by side."""
        ids = [f"h{self._count + index}" for index in range(len(requests))]
        self._count += len(requests)
        submits = [
            wire.Submit(each, pack_prompt(prompt), SamplingParams(max_tokens=1, hidden=read))
            for each, (prompt, read) in zip(ids, requests, strict=True)
        ]
        sent = self.turn(*submits)
        outputs = [each for each in sent if isinstance(each, wire.StepOutput)]
        deltas = {delta.request_id: delta for each in outputs for delta in each.deltas}
        retired = {each.request_id: each for each in sent if isinstance(each, wire.Retired)}
        assert all(retired[each].finish == "stop" for each in ids)
        return [deltas[each].hidden for each in ids]

    def control(self, op: wire.ControlOp, level: wire.EvictionLevel | None = None):
        """Run an operation; what it answers."""
        sent = self.turn(wire.Control(1, op, level))
        return next(each for each in sent if isinstance(each, wire.ControlDone))

    def _now(self) -> int:
        self._clock += 1_000_000
        return self._clock
