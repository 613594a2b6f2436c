"""`luce plan --explain` says what the running server would decide (B49)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.placement.byte_room import ByteOptions, ByteRoom
from luce.placement.explain import Explanation, Question, ServerStatus, explain
from luce.placement.ledger import Ledger, Pool
from luce.placement.residency import Residency
from luce.placement.samples import Samples
from luce.placement.situation import Commit, Decision, MakeRoom, ModelFacts, Refuse, Situation, Wait

POOLS = ("GPU-a", "GPU-b", "host")
NAMES = ("m0", "m1", "m2", "m3", "m4")
STATES = (Residency.UNLOADED, Residency.SLEEPING, Residency.LOADING, Residency.READY)

plans = st.dictionaries(st.sampled_from(POOLS), st.integers(1, 60), min_size=1)
models = st.fixed_dictionaries(
    {
        "plan": plans,
        "state": st.sampled_from(STATES),
        "pinned": st.booleans(),
        "in_flight": st.integers(0, 1),
        "idle_ms": st.integers(0, 5).map(lambda s: 1000 * s),
        "reload_ms": st.integers(0, 3),
        "kept": st.integers(0, 10),
    }
)


class Server:
    """Books and models in some state, and the status a server in it would publish."""

    def __init__(self, drawn: Mapping[str, dict[str, Any]], free: dict[str, int | None]) -> None:
        self.drawn = drawn
        samples = Samples(lambda: 0.0)
        self.ledger = Ledger(
            [Pool(name, (name,), 100, 3) for name in POOLS],
            {name: model["plan"] for name, model in drawn.items()},
            samples,
            [name for name, model in drawn.items() if model["pinned"]],
        )
        for name, model in drawn.items():
            self._bring(name, model)
        for pool, nbytes in free.items():
            samples.put(pool, nbytes, samples.epoch)
        self.samples = samples

    def _bring(self, name: str, model: dict[str, Any]) -> None:
        if model["state"] is Residency.SLEEPING:
            self.ledger.keep(name, model["kept"])
        elif model["state"] is not Residency.UNLOADED:
            self.ledger.reserve(name)
            if model["state"] is Residency.READY:
                self.ledger.settle(name, {})

    def decide(self, target: str, options: ByteOptions) -> Decision:
        facts = {
            name: ModelFacts(
                name=name,
                devices=tuple(model["plan"]),
                state=model["state"],
                is_pinned=model["pinned"],
                in_flight=model["in_flight"],
                idle_s=model["idle_ms"] / 1000,
                reload_ms=model["reload_ms"],
            )
            for name, model in self.drawn.items()
        }
        return self.room(options).decide(target, Situation(facts))

    def room(self, options: ByteOptions) -> ByteRoom:
        return ByteRoom(self.ledger, self.samples, options)

    def status(self, options: ByteOptions) -> ServerStatus:
        document = {
            **self.room(options).terms,
            "devices": [dict(row) for row in self.ledger.devices()],
            "models": [
                {
                    "id": name,
                    "in_flight": model["in_flight"],
                    "residency_state": model["state"].value,
                    "pinned": model["pinned"],
                    "idle_ms": model["idle_ms"],
                    "last_reinstate_ms": model["reload_ms"],
                }
                for name, model in self.drawn.items()
            ],
        }
        return msgspec.json.decode(json.dumps(document), type=ServerStatus)


def in_words(decision: Decision) -> Explanation:
    match decision:
        case Commit(reason=reason):
            return Explanation("load", (), reason)
        case MakeRoom(evictions=evictions, reason=reason):
            return Explanation("make room", tuple(e.model for e in evictions), reason)
        case Wait(reason=reason):
            return Explanation("wait", (), reason)
        case Refuse(reason=reason):
            return Explanation("refuse", (), reason)
    raise AssertionError(decision)


@settings(max_examples=300)
@given(
    st.fixed_dictionaries(dict.fromkeys(NAMES, models)),
    st.fixed_dictionaries({pool: st.none() | st.integers(0, 100) for pool in POOLS}),
    st.sampled_from(["gate", "proceed"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_tool_and_the_server_agree(
    drawn: dict[str, dict[str, Any]],
    free: dict[str, int | None],
    policy: Any,
    models_max: int,
    is_exclusive: bool,
) -> None:
    target = "m0"
    drawn = {**drawn, target: {**drawn[target], "state": Residency.UNLOADED}}
    server = Server(drawn, free)
    exclusive = frozenset({target} if is_exclusive else ())
    options = ByteOptions(policy=policy, models_max=models_max, exclusive=exclusive)
    decided = server.decide(target, options)
    question = Question(
        name=target,
        plan=drawn[target]["plan"],
        is_exclusive=is_exclusive,
    )
    assert explain(question, server.status(options)) == in_words(decided)
