"""Who brings the models up and keeps them where they belong, from the start to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from luce.config.listener import ServerConfig
from luce.errors import WorkerStartError
from luce.listener.on_demand import OnDemand, build_on_demand
from luce.listener.residency import Placement, Turns, Workplace, build_turns
from luce.listener.residents import Residents
from luce.listener.served import ServedModels
from luce.listener.startup import (
    load_text_of,
    report_budgets,
    settle_memory,
    start_model,
    start_models,
    watch_model,
)
from luce.listener.turns_start import start_turns
from luce.placement.coordinator import Coordinator
from luce.routing.router import Router
from luce.workers.supervisor import Supervisor


class Keeper(Protocol):
    """One server's way with its models; event loop only."""

    async def start(self) -> None:
        """Bring up what is to be up at the start.

        Raises:
            StartupError: a model does not come up.
        """

    def tick(self) -> None:
        """Time has passed."""

    def shut_down(self) -> None:
        """The server ends: begin nothing more."""

    async def close(self) -> None:
        """Give up what is under way."""


class AllResident:
    """Every model is loaded once and stays."""

    def __init__(self, models: ServedModels, supervisors: Sequence[Supervisor]) -> None:
        self._models = models
        self._supervisors = supervisors

    async def start(self) -> None:
        """Load every model; see `Keeper.start`."""
        await start_models(self._models, self._supervisors)

    def tick(self) -> None:
        """Nothing moves."""

    def shut_down(self) -> None:
        """Nothing is begun anyway."""

    async def close(self) -> None:
        """Nothing is under way."""


class _Moving:
    """What those have in common whose models come and go."""

    def __init__(
        self, models: ServedModels, coordinator: Coordinator, residents: Residents
    ) -> None:
        self._models = models
        self._coordinator = coordinator
        self._residents = residents

    def tick(self) -> None:
        """See whether anything is due."""
        if self._models.coordinator is not None:
            self._coordinator.advance()

    def shut_down(self) -> None:
        """No further transition."""
        self._coordinator.shut_down()

    async def close(self) -> None:
        """Give up transitions; their workers are ended by others."""
        await self._residents.close()

    def _open(self) -> None:
        settle_memory()
        self._models.take_turns(self._coordinator)
        self._coordinator.open()


class TakingTurns(_Moving):
    """Models that share a device take turns on it."""

    def __init__(
        self, models: ServedModels, supervisors: Sequence[Supervisor], turns: Turns
    ) -> None:
        super().__init__(models, turns.coordinator, turns.residents)
        self._supervisors = list(supervisors)
        self._turns = turns

    async def start(self) -> None:
        """Load every model, never more of them than fit together; see `Keeper.start`."""
        await start_turns(self._turns, self._supervisors, partial(start_model, self._models))
        self._open()


class LoadingOnDemand(_Moving):
    """Models load when they are asked for."""

    def __init__(
        self,
        models: ServedModels,
        supervisors: Sequence[Supervisor],
        demand: OnDemand,
        preload: Sequence[str],
    ) -> None:
        super().__init__(models, demand.coordinator, demand.residents)
        self._supervisors = list(supervisors)
        self._preload = preload

    async def start(self) -> None:
        """Load every text, and the models of `--preload`; see `Keeper.start`."""
        for supervisor in self._supervisors:
            watch_model(self._models[supervisor.handle.name])
        await asyncio.gather(*(load_text_of(self._models, model) for model in self._models))
        for model in self._models:
            report_budgets(model)
        self._open()
        for name in self._preload:
            self._coordinator.want(name)
        for name in self._preload:
            await self._residents.until_settled(name)
        # All of them at the end: the last may have sent the first away.
        for name in self._preload:
            record = self._coordinator.fleet[name]
            if not record.is_resident:
                refusal = self._coordinator.chronicle.history.last_reason(name)
                problem = record.problem or record.last_reason or refusal
                raise WorkerStartError(f"--preload {name}: {problem}")


def keeper_of(
    config: ServerConfig,
    router: Router,
    models: ServedModels,
    supervisors: Sequence[Supervisor],
    placement: Placement | None = None,
) -> Keeper:
    """The keeper that a configuration asks for."""
    if config.routing.is_by_name and config.routing.unknown_model == "primary":
        models.unknown_model = config.models[0].name
    by_name: Mapping[str, Supervisor] = {s.handle.name: s for s in supervisors}
    if config.routing.swap_residency:
        workplace = Workplace(router, models, by_name)
        return TakingTurns(models, supervisors, build_turns(config, workplace, placement))
    if config.routing.load_on_demand and placement is not None:
        demand = build_on_demand(config, Workplace(router, models, by_name), placement)
        return LoadingOnDemand(models, supervisors, demand, config.routing.preload)
    return AllResident(models, supervisors)
