from __future__ import annotations

from pathlib import Path

import pytest

from luce.config.model import ModelConfig
from luce.errors import InvalidRequest, ModelNotFound
from luce.listener.named_model import named_model
from luce.listener.served import ServedModel, ServedModels
from luce.protocol.messages import LoadSpec
from luce.routing.policy import PrimaryFirst
from luce.routing.router import Router
from luce.workers.handle import WorkerHandle


def served(*names: str) -> ServedModels:
    models = [
        ServedModel(
            ModelConfig(path=Path("x"), name=name), WorkerHandle(LoadSpec(name=name, path="x"))
        )
        for name in names
    ]
    return ServedModels(models, Router(list(names), PrimaryFirst(), 8))


@pytest.mark.parametrize("name", [None, "", "auto", "only", "other"])
def test_the_only_model_is_always_meant(name: str | None) -> None:
    assert named_model(served("only"), name).name == "only"


def test_the_name_decides_among_several() -> None:
    assert [named_model(served("a", "b"), name).name for name in ("a", "b")] == ["a", "b"]


@pytest.mark.parametrize("name", [None, "", "auto"])
def test_no_name_among_several(name: str | None) -> None:
    with pytest.raises(InvalidRequest, match="one of: a, b") as caught:
        named_model(served("a", "b"), name)
    assert caught.value.param == "model"


@pytest.mark.parametrize("name", ["c", "A", " a", "x" * 10_000])
def test_a_name_nobody_has(name: str) -> None:
    with pytest.raises(ModelNotFound, match="available models: a, b") as caught:
        named_model(served("a", "b"), name)
    assert len(str(caught.value)) < 300
