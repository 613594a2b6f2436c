"""Admission: answers each Submit, at once or when its grammar is compiled."""

from __future__ import annotations

from dataclasses import replace

from luce.protocol import messages as wire
from luce.protocol.sampling import GrammarSpec
from luce.scheduler.outcome import Admitted
from luce.scheduler.scheduler import Scheduler
from luce.worker import convert
from luce.worker.grammar_desk import GrammarDesk
from luce.worker.ports import GrammarChecked, LoopOptions, Post
from luce.worker.residency import Residency


class Admission:
    """The way of requests into the scheduler. Belongs to the engine's thread.

    Args:
        scheduler: decides.
        grammars: compiles.
        residency: whether the model is there.
        post: where answers go.
        options: numbers of the model.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        grammars: GrammarDesk,
        residency: Residency,
        post: Post,
        options: LoopOptions,
    ) -> None:
        self._scheduler = scheduler
        self._grammars = grammars
        self._post = post
        self._options = options
        self._is_draining = False
        self._residency = residency

    @property
    def holds_requests(self) -> bool:
        """Whether a request is not at its end."""
        return self._scheduler.has_work or not self._grammars.is_idle

    def drain(self) -> None:
        """Admit nothing more."""
        self._is_draining = True

    def give_up_waiting(self) -> None:
        """Refuse those whose grammars are still being compiled."""
        for request_id in self._grammars.forget_all():
            self._post.send(wire.Refused(request_id, "draining"))

    def submit(self, submit: wire.Submit) -> None:
        """A request has come."""
        if submit.sampling.grammar is None or self._is_closed:
            self._post.send(self._admit(submit))
        else:
            self._grammars.ask(submit)

    def submit_checked(self, checked: GrammarChecked) -> None:
        """A request's grammar is compiled, or cannot be."""
        submit = self._grammars.take(checked)
        if submit is None:
            return
        if checked.error is None:
            self._post.send(self._admit(submit, checked.grammar))
        else:
            self._post.send(convert.failed(submit.request_id, checked.error))

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this request any more."""
        if self._grammars.forget(request_id):
            self._post.send(wire.Refused(request_id, "capacity", detail="cancelled in time"))
        else:
            self._scheduler.cancel(request_id)

    @property
    def _is_closed(self) -> bool:
        return self._is_draining or self._residency.is_evicted

    def _admit(
        self, submit: wire.Submit, grammar: GrammarSpec | None = None
    ) -> wire.Admitted | wire.Refused:
        if self._is_closed:
            return wire.Refused(submit.request_id, "draining")
        prompt = convert.prompt_ids(submit, self._options.vocab_size)
        if isinstance(prompt, wire.Refused):
            return prompt
        sampling = convert.with_layers(submit, self._options.num_layers, self._options.hidden_size)
        if isinstance(sampling, wire.Refused):
            return sampling
        # What was compiled lives as long as the sequence, however long that waits for blocks.
        if grammar is not None:
            sampling = replace(sampling, grammar=grammar)
        result = self._scheduler.submit(submit.request_id, prompt, sampling)
        if not isinstance(result, Admitted):
            return convert.refusal(submit.request_id, result)
        return wire.Admitted(submit.request_id, result.cached_tokens)
