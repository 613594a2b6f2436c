"""The models this server serves: configuration, worker and text of each, and the router's view
of them kept up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from luce.config.device import AUTO, parse_device
from luce.config.model import ModelConfig
from luce.errors import StartupError
from luce.listener.ports import Text
from luce.placement.coordinator import Coordinator
from luce.placement.residency import ModelRecord, Residency
from luce.protocol.messages import Limits
from luce.routing.policy import ServingState
from luce.routing.router import Router
from luce.text.budgets import BudgetEnvelope
from luce.workers.handle import WorkerHandle, WorkerState

_STATES: dict[WorkerState, ServingState] = {
    WorkerState.STARTING: "loading",
    WorkerState.LOADING: "loading",
    WorkerState.READY: "ready",
    WorkerState.EVICTED: "loading",
}
_ELSEWHERE: dict[Residency, ServingState] = {
    Residency.DRAINING: "closing",
    Residency.RESERVED: "entering",
    Residency.LOADING: "entering",
    Residency.COOLDOWN: "failed",
}
"""Where models take turns: all states but READY, in which the worker has the word; the ones that
are not here are evicted."""


class ServedModel:
    """One model.

    Attributes:
        config: its block.
        handle: its worker.
        text: its tokenizer and template; None while they load.
        record: where it is, once models take turns; None where each stays where it is.
        planned: what it will hold, by its memory plan, if it loads when it is asked for.
        is_held: it is given nothing before the start is over: until then it may have to leave at
            any moment, and a model that holds requests does not.
    """

    def __init__(self, config: ModelConfig, handle: WorkerHandle) -> None:
        self.config = config
        self.handle = handle
        self.text: Text[Any] | None = None
        self.record: ModelRecord | None = None
        self.planned: Limits | None = None
        self.is_held = False

    @property
    def name(self) -> str:
        """As configured."""
        return self.config.name

    @property
    def state(self) -> ServingState:
        """Whether requests can be given to it."""
        if self.is_held:
            return "loading"
        if self.record is not None and self.record.state is not Residency.READY:
            return "loading" if self.text is None else _ELSEWHERE.get(self.record.state, "evicted")
        state = _STATES.get(self.handle.state, "unavailable")
        if self.text is None:
            return "loading" if state == "ready" else state
        has_served = self.handle.ready is not None
        if has_served and isinstance(self.handle.fault, StartupError):
            # It is tried again and again; nobody waits for what may never come.
            return "unavailable"
        is_coming_up = self.handle.state is WorkerState.LOST or state == "loading"
        return "restarting" if has_served and is_coming_up else state

    @property
    def limits(self) -> Limits | None:
        """What it holds, as its worker said, or as is planned; None until known."""
        return self.handle.limits or self.planned

    @property
    def capacity(self) -> int:
        """Requests it can hold at a time; 0 until known."""
        limits = self.limits
        return limits.max_concurrency if limits is not None else 0

    @property
    def is_up(self) -> bool:
        """Its worker is loaded and alive: what it says of itself holds."""
        alive = (WorkerState.READY, WorkerState.DRAINING, WorkerState.EVICTED)
        return self.handle.state in alive

    @property
    def device(self) -> str:
        """Where it is, or should be once it is loaded, by the name that everybody uses."""
        if self.handle.ready is not None:
            return self.handle.ready.device
        named = self.config.target_device
        return named if named == AUTO else str(parse_device(named))

    @property
    def num_restarts(self) -> int:
        """Processes its worker has had after the first."""
        return max(0, self.handle.num_processes - 1)

    @property
    def context_length(self) -> int | None:
        """Longest sequence it serves; None until known."""
        limits = self.limits
        return limits.max_seq_tokens if limits is not None else self.config.max_ctx

    @property
    def budgets(self) -> BudgetEnvelope | None:
        """As its context allows them, once that is known; None while its text loads."""
        budgets = self.text.thinking.budgets if self.text is not None else None
        if budgets is None or self.context_length is None:
            return budgets
        return budgets.within(self.context_length)

    @property
    def most_tokens(self) -> int | None:
        """No sequence it holds, or will hold once it is up, is longer; None until known."""
        limits = self.limits
        if limits is not None:
            return limits.max_seq_tokens
        bounds = (self.config.max_ctx, self.config.kv_pool_tokens, self.max_context_length)
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def max_context_length(self) -> int | None:
        """The context it was trained for; None until known."""
        return self.text.context_length if self.text is not None else None


class ServedModels:
    """All models by name, in order of priority; tells the router what changes.

    Attributes:
        coordinator: who decides which are resident; None where all are.
        unknown_model: the one that stands in for names that are none of them; None: nobody does.
    """

    def __init__(self, models: Sequence[ServedModel], router: Router) -> None:
        self._models = {model.name: model for model in models}
        self._router = router
        self.coordinator: Coordinator | None = None
        self.unknown_model: str | None = None
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

    def hold(self) -> None:
        """Give them nothing before `take_turns`."""
        for model in self._models.values():
            model.is_held = True
        self.refresh()

    def take_turns(self, coordinator: Coordinator) -> None:
        """From now on the coordinator says which are resident, and the router tells it what for."""
        self.coordinator = coordinator
        self._router.observer = coordinator
        for model in self._models.values():
            model.record = coordinator.fleet[model.name]
            model.is_held = False
        self.refresh()

    def refresh(self) -> None:
        """Bring the router's view up to date."""
        for model in self._models.values():
            record = model.record
            problem = record.problem if record is not None else ""
            retry_at_s = record.retry_at_s if record is not None and problem else None
            self._router.update_model(model.name, model.state, model.capacity, problem, retry_at_s)
