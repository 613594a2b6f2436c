"""The models this server serves: configuration, worker and text of each, and the router's view
of them kept up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from luce.config.model import ModelConfig
from luce.listener.ports import Text
from luce.routing.policy import ServingState
from luce.routing.router import Router
from luce.workers.handle import WorkerHandle, WorkerState

_STATES: dict[WorkerState, ServingState] = {
    WorkerState.STARTING: "loading",
    WorkerState.LOADING: "loading",
    WorkerState.READY: "ready",
}


class ServedModel:
    """One model.

    Attributes:
        config: its block.
        handle: its worker.
        text: its tokenizer and template; None while they load.
    """

    def __init__(self, config: ModelConfig, handle: WorkerHandle) -> None:
        self.config = config
        self.handle = handle
        self.text: Text[Any] | None = None

    @property
    def name(self) -> str:
        """As configured."""
        return self.config.name

    @property
    def state(self) -> ServingState:
        """Whether requests can be given to it."""
        state = _STATES.get(self.handle.state, "unavailable")
        if self.text is None:
            return "loading" if state == "ready" else state
        has_served = self.handle.ready is not None
        is_coming_up = self.handle.state is WorkerState.LOST or state == "loading"
        return "restarting" if has_served and is_coming_up else state

    @property
    def capacity(self) -> int:
        """Requests it can hold at a time; 0 until its worker has said."""
        limits = self.handle.limits
        return limits.max_concurrency if limits is not None else 0

    @property
    def is_up(self) -> bool:
        """Its worker is loaded and alive: what it says of itself holds."""
        return self.handle.state in (WorkerState.READY, WorkerState.DRAINING)

    @property
    def device(self) -> str:
        """Where it is, or should be once it is loaded."""
        return self.handle.ready.device if self.handle.ready else self.config.target_device

    @property
    def num_restarts(self) -> int:
        """Processes its worker has had after the first."""
        return max(0, self.handle.num_processes - 1)

    @property
    def context_length(self) -> int | None:
        """Longest sequence it serves; None until known."""
        limits = self.handle.limits
        return limits.max_seq_tokens if limits is not None else self.config.max_ctx

    @property
    def most_tokens(self) -> int | None:
        """No sequence it holds, or will hold once it is up, is longer; None until known."""
        limits = self.handle.limits
        if limits is not None:
            return limits.max_seq_tokens
        bounds = (self.config.max_ctx, self.config.kv_pool_tokens, self.max_context_length)
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def max_context_length(self) -> int | None:
        """The context it was trained for; None until known."""
        return self.text.context_length if self.text is not None else None


class ServedModels:
    """All models by name, in order of priority; tells the router what changes."""

    def __init__(self, models: Sequence[ServedModel], router: Router) -> None:
        self._models = {model.name: model for model in models}
        self._router = router
        for model in models:
            model.handle.on_change.append(self.refresh)
        self.refresh()

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def get(self, name: str) -> ServedModel | None:
        """The model of this name, if there is one."""
        return self._models.get(name)

    def set_text(self, name: str, text: Text[Any]) -> None:
        """A model's tokenizer and template are loaded."""
        self._models[name].text = text
        self._models[name].handle.vocabulary = text.vocabulary
        self.refresh()

    def refresh(self) -> None:
        """Bring the router's view up to date."""
        for model in self._models.values():
            self._router.update_model(model.name, model.state, model.capacity)
