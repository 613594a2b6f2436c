from __future__ import annotations

import pytest

from luce.errors import ModelLoading, ModelUnavailable
from luce.routing.policy import (
    ModelView,
    PrimaryFirst,
    Reject,
    RouteRequest,
    ServingState,
    Try,
)


def views(*states: ServingState) -> list[ModelView]:
    return [ModelView(f"m{i}", i, state, 0, 1) for i, state in enumerate(states)]


def test_ready_models_by_priority_whatever_the_order_given() -> None:
    models = views("ready", "loading", "ready")[::-1]
    assert PrimaryFirst().decide(RouteRequest("r"), models) == Try(("m0", "m2"))


@pytest.mark.parametrize("name", [None, "auto", "m1", "something-else"])
def test_the_name_asked_for_does_not_matter(name: str | None) -> None:
    decision = PrimaryFirst().decide(RouteRequest("r", name), views("ready", "ready"))
    assert decision == Try(("m0", "m1"))


def test_busy_models_are_candidates_too() -> None:
    busy = ModelView("m0", 0, "ready", in_flight=1, capacity=1)
    assert PrimaryFirst().decide(RouteRequest("r"), [busy]) == Try(("m0",))


def test_restarting_models_are_waited_for_while_none_is_ready() -> None:
    models = views("restarting", "unavailable", "ready", "loading", "restarting")
    assert PrimaryFirst().decide(RouteRequest("r"), models) == Try(("m2",))
    del models[2]
    assert PrimaryFirst().decide(RouteRequest("r"), models) == Try(("m0", "m4"))


@pytest.mark.parametrize(
    ("states", "error"),
    [
        (("loading", "loading"), ModelLoading),
        (("unavailable", "loading"), ModelLoading),
        (("unavailable",), ModelUnavailable),
    ],
)
def test_nobody_ready(states: tuple[ServingState, ...], error: type[Exception]) -> None:
    decision = PrimaryFirst().decide(RouteRequest("r"), views(*states))
    assert isinstance(decision, Reject)
    assert type(decision.error) is error
    assert decision.error.retry_after_s
    assert "m0" in decision.error.message
