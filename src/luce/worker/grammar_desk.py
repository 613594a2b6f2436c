"""GrammarDesk: compiles grammars beside the engine's thread, which goes on stepping.

A large schema takes a second to compile; the sequences that run would feel it. The compiler works
without the interpreter's lock.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from luce.errors import ApiError, InternalError
from luce.protocol import messages as wire
from luce.worker.ports import GrammarChecked, Post, StepEngine


class GrammarDesk:
    """Requests whose grammars are being compiled. Belongs to the engine's thread.

    Each answer comes into the inbox as a `GrammarChecked`, in the order of the questions.
    """

    def __init__(self, engine: StepEngine, post: Post) -> None:
        self._engine = engine
        self._post = post
        self._waiting: dict[str, tuple[wire.Submit, Future[None]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-desk")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being compiled."""
        return not self._waiting

    def learn(self, vocabulary: wire.Vocabulary) -> None:
        """Let the engine know the tokens before any grammar that is asked about later."""
        self._thread.submit(
            self._engine.use_vocabulary,
            vocabulary.tokens,
            vocabulary.control_ids,
            vocabulary.end_ids,
        )

    def ask(self, submit: wire.Submit) -> None:
        """Compile a request's grammar."""
        self._waiting[submit.request_id] = submit, self._thread.submit(self._check, submit)

    def take(self, checked: GrammarChecked) -> wire.Submit | None:
        """The request an answer is for; None if it was forgotten."""
        submit, _ = self._waiting.get(checked.submit.request_id, (None, None))
        if submit is None or submit is not checked.submit:
            return None
        del self._waiting[submit.request_id]
        return submit

    def forget(self, request_id: str) -> bool:
        """The request has gone, so it need not be compiled; False: it is not here."""
        _, under_way = self._waiting.pop(request_id, (None, None))
        if under_way is None:
            return False
        under_way.cancel()
        return True

    def forget_all(self) -> tuple[str, ...]:
        """Forget every request; their ids."""
        ids = tuple(self._waiting)
        for request_id in ids:
            self.forget(request_id)
        return ids

    def close(self) -> None:
        """End the thread; what it compiles is finished first."""
        self._thread.shutdown(cancel_futures=True)

    def _check(self, submit: wire.Submit) -> None:
        grammar = submit.sampling.grammar
        error: ApiError | None = None
        try:
            if grammar is not None:
                grammar = self._engine.check_grammar(grammar)
        except ApiError as refused:
            error = refused
        except Exception as failure:  # A thread's border: the request must hear of it.
            error = InternalError(f"the grammar's compiler failed: {failure}")
        self._post.post(GrammarChecked(submit, None if error else grammar, error))
