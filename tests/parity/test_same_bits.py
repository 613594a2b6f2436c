"""Native kernels give a token the same logits, to the last bit, however the work is laid out.

Of quantised files: plain weights are multiplied by oneDNN. The text of a request must not depend on
a prefix that was found, on neighbours, on a preemption or a swap; ids alone would show a difference
only where two tokens are nearly equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from engine_harness import all_logits, load_engine, mixed_logits, random_ids

from luce.engine.engine import Engine
from luce.engine.native.library import native_library
from luce.scheduler.plan import ScheduledSequence
from luce.testing.tiny_models import tiny_llama, tiny_qwen3moe, tiny_qwen35, tiny_qwen35moe

IDS = random_ids(90, 280, seed=1)
TABLE = tuple(range(1, 10))
CUTS = [[64, 26], [48, 42], [89, 1], [1] * 20 + [70], [3] * 30]
MODELS: dict[str, tuple[Callable[..., Path], dict[str, str]]] = {
    "dense": (tiny_llama, {"quant": "Q4_0"}),
    "mixture": (tiny_qwen3moe, {"quant": "Q8_0"}),
    "hybrid": (tiny_qwen35, {"quant": "Q5_1"}),
    "hybrid_mixture": (tiny_qwen35moe, {"quant": "Q4_0"}),
}


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if isinstance(native_library(), str):
        pytest.skip("there are no native kernels here")
    make, options = MODELS[request.param]
    return make(tmp_path_factory.mktemp(request.param), **options)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    engine = load_engine(path)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def whole(engine: Engine) -> torch.Tensor:
    """Logits of the prompt in one piece, alone."""
    return all_logits(engine, IDS, [len(IDS)], TABLE)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut[0]}x{len(cut)}")
def test_a_prompt_in_pieces(engine: Engine, whole: torch.Tensor, cut: list[int]) -> None:
    """A piece behind others is what a prompt behind a prefix that was found or recalled is."""
    assert torch.equal(all_logits(engine, IDS, cut, TABLE), whole)


def test_beside_neighbours(engine: Engine, whole: torch.Tensor) -> None:
    def prompt(row: int, length: int) -> ScheduledSequence:
        ids = tuple(random_ids(length, 280, seed=row))
        return ScheduledSequence(row, 0, ids, tuple(range(20 * row, 20 * row + 9)), sample=True)

    mine = ScheduledSequence(0, 0, tuple(IDS), TABLE, sample=True)
    logits = mixed_logits(engine, [prompt(1, 7), mine, prompt(2, 33)])
    assert torch.equal(logits[1], whole)


def test_on_two_threads(path: Path, whole: torch.Tensor) -> None:
    engine = load_engine(path, threads=2)
    try:
        assert torch.equal(all_logits(engine, IDS, [50, 40], TABLE), whole)
    finally:
        engine.close()
