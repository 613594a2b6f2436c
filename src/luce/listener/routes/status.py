"""`GET /status/json`: what the server is doing, from what the listener knows.

No worker is asked, so it answers at once also while one computes, hangs or is gone.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from luce.listener.dialects.base import JSON_TYPE
from luce.listener.expert_load import experts_status
from luce.listener.generate import Generator
from luce.listener.model_props import model_props
from luce.listener.residency_status import (
    PlacementFields,
    ResidencyFields,
    placement_fields,
    residency_fields,
)
from luce.listener.served import ServedModel, ServedModels
from luce.listener.telemetry import Telemetry
from luce.observability.history import FinishedRequest
from luce.routing.policy import ModelView
from luce.routing.router import Router

Phase = Literal["idle", "prefill", "decode", "mixed"]


class ModelActivity(msgspec.Struct, kw_only=True):
    """What one model is doing.

    Attributes:
        phase: prefill until a request's first token, decode after it, mixed: both.
        active_requests: requests the worker holds.
        suspended_requests: those of them that lost their KV blocks and wait to be recomputed.
        fault: why the worker cannot serve, null while it can.
    """

    phase: Phase
    active_requests: int
    suspended_requests: int
    fault: str | None


class ModelEntry(ResidencyFields, kw_only=True):
    """One model in the list.

    Attributes:
        capacity: requests it can hold at a time, 0 until its worker has said.
        in_flight: reservations: also those whose output still goes to the client.
        max_context: longest sequence, null while it loads.
        restarts: processes of its worker after the first.
        experts: how evenly a mixture spreads its tokens; null for other models.
    """

    id: str
    capacity: int
    in_flight: int
    execution_mode: str = "batched"
    target_device: str
    draft_device: None = None
    max_context: int | None
    state: str
    restarts: int
    status: ModelActivity
    experts: dict[str, Any] | None
    props: dict[str, Any]


class Status(PlacementFields, kw_only=True):
    """The whole answer; `docs/status.md` describes it."""

    phase: Phase
    total_requests: int
    active_requests: int
    suspended_requests: int
    offloaded_kv_bytes: None = None
    current: None = None
    perf_history: list[FinishedRequest]
    routing: str | msgspec.UnsetType = msgspec.UNSET
    waiting: int
    queue_limit: int
    models: list[ModelEntry]


class StatusRoute:
    """The endpoint."""

    def __init__(
        self, models: ServedModels, router: Router, generator: Generator, telemetry: Telemetry
    ) -> None:
        self._models = models
        self._router = router
        self._generator = generator
        self._telemetry = telemetry

    async def show(self, request: Request) -> Response:
        """The status as of now; with `?experts=tokens` also the tokens of each expert."""
        with_tokens = request.query_params.get("experts") == "tokens"
        entries = model_entries(self._models, self._router, with_tokens=with_tokens)
        activities = [entry.status for entry in entries]
        status = Status(
            phase=_together([activity.phase for activity in activities]),
            total_requests=self._generator.num_started,
            active_requests=sum(activity.active_requests for activity in activities),
            suspended_requests=sum(activity.suspended_requests for activity in activities),
            perf_history=self._telemetry.history.recent(),
            routing=self._router.policy.name if len(entries) > 1 else msgspec.UNSET,
            waiting=self._router.num_waiting,
            queue_limit=self._router.queue_limit,
            models=entries,
            **placement_fields(self._models.coordinator),
        )
        return Response(msgspec.json.encode(status), media_type=JSON_TYPE)


def model_entries(
    models: ServedModels, router: Router, *, with_tokens: bool = False
) -> list[ModelEntry]:
    """Every model, by priority; `with_tokens`: with those of each expert."""
    return [_entry(models[view.name], view, router, with_tokens) for view in router.views()]


def _entry(model: ServedModel, view: ModelView, router: Router, with_tokens: bool) -> ModelEntry:
    return ModelEntry(
        id=model.name,
        capacity=view.capacity,
        in_flight=view.in_flight,
        target_device=model.device,
        max_context=model.context_length,
        state=model.state,
        restarts=model.num_restarts,
        status=_activity(model),
        experts=experts_status(model.handle.stats, with_tokens=with_tokens),
        props=model_props(model),
        **residency_fields(model, router),
    )


def _activity(model: ServedModel) -> ModelActivity:
    handle = model.handle
    num_held, num_decoding = handle.in_flight, handle.num_decoding
    return ModelActivity(
        phase=_phase(num_held - num_decoding, num_decoding),
        active_requests=num_held,
        suspended_requests=handle.stats.preempted if model.is_up else 0,
        fault=str(handle.fault) if handle.fault is not None else None,
    )


def _phase(num_prefilling: int, num_decoding: int) -> Phase:
    if num_prefilling and num_decoding:
        return "mixed"
    if num_prefilling:
        return "prefill"
    return "decode" if num_decoding else "idle"


def _together(phases: list[Phase]) -> Phase:
    busy = {phase for phase in phases if phase != "idle"}
    if len(busy) > 1:
        return "mixed"
    return busy.pop() if busy else "idle"
