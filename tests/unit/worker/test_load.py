"""What an engine is asked for on a worker's behalf."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.errors import PlacementError
from luce.protocol.messages import LoadSpec
from luce.worker.load import load_model


@pytest.mark.parametrize("takes_turns", [False, True])
def test_all_that_was_told_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_turns: bool
) -> None:
    asked: list[EngineOptions] = []

    def load(options: EngineOptions, progress: object) -> Engine:
        asked.append(options)
        raise PlacementError("enough is known")

    monkeypatch.setattr(Engine, "load", load)
    spec = LoadSpec(
        name="m",
        path=str(tmp_path),
        device="cuda:1",
        dtype="bfloat16",
        max_ctx=512,
        max_concurrency=3,
        chunk=64,
        cache_type_v="q8_0",
        takes_turns=takes_turns,
    )
    with pytest.raises(PlacementError):
        load_model(spec, lambda *_: None)
    assert asked == [
        EngineOptions(
            path=tmp_path,
            device="cuda:1",
            dtype="bfloat16",
            max_ctx=512,
            max_concurrency=3,
            chunk=64,
            cache_type_v="q8_0",
            num_checkpoints=asked[0].num_checkpoints,
            takes_turns=takes_turns,
        )
    ]
