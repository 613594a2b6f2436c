"""Hybrids and mixtures on a GPU: the CPU's logits and ids, and states that are saved."""

from __future__ import annotations

import pytest
import torch
from bench.engine.hybrid_shapes import HybridParameters, hybrid_engine, hybrid_hparams
from bench.engine.shapes import Storage
from engine_harness import Driver, Request, all_logits

from luce.engine.device import open_device
from luce.engine.device_inputs import mixed_step
from luce.engine.engine import Blueprint, Engine
from luce.engine.options import EngineOptions
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.model_sizes import Sizing

VOCAB = 1024
GREEDY = SamplingParams(max_tokens=1 << 20)
BLOCKS = tuple(range(1, 40))
SIZES = ["tiny", "tiny-moe"]


class Moved(HybridParameters):
    """The same numbers on every device and in every type."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(torch.float32, torch.device("cpu"), seed=5)
        self._target = {"dtype": dtype, "device": device}

    def _normal(self, *shape: int, spread: float) -> torch.Tensor:
        return super()._normal(*shape, spread=spread).to(**self._target)


def make(
    size: str, device: str, dtype: torch.dtype = torch.float32, *, warm: bool = False
) -> Engine:
    options = EngineOptions(
        path=None,  # type: ignore[arg-type]
        device=device,
        max_concurrency=16,
        max_ctx=640,
        chunk=256,
        num_checkpoints=3,
        cpu_exact=True,
    )
    hparams, where = hybrid_hparams(size), open_device(device)
    sizing = Sizing(640, 700, 0, 0, 0)
    blueprint = Blueprint(hparams.architecture, hparams, options, where, dtype, sizing)
    with torch.inference_mode():
        engine = Engine(blueprint, Moved(dtype, where.torch), lambda *_: None)
    if warm:
        engine.warm_up()
    return engine


def tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (count,), generator=generator).tolist()


def start(row: int, ids: list[int], restore: int | None = None) -> RowStart:
    return RowStart(row, GREEDY, 0, tuple(ids), len(ids), restore_checkpoint=restore)


def logits(engine: Engine, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        if engine._executor is None:
            return all_logits(engine, ids, [len(ids)], BLOCKS)[-1]
        engine._runner.start_states((start(0, ids),))
        item = ScheduledSequence(0, 0, tuple(ids), BLOCKS, sample=True)
        step = mixed_step([item], engine._executor._rows, 16)
        found = engine._runner.logits(step.batch)
        assert found is not None
        return found[0].cpu()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 6e-2)])
def test_logits(size: str, dtype: torch.dtype, bound: float) -> None:
    if "moe" in size and dtype == torch.bfloat16:
        bound = 0.15  # A router in bfloat16 sends a token that is nearly a tie elsewhere: 0.094.
    ids = tokens(301, seed=1)
    expected = logits(make(size, "cpu"), ids)
    found = logits(make(size, "cuda:0", dtype), ids)
    assert ((found - expected).norm() / expected.norm()).item() < bound


def requests(count: int) -> list[Request]:
    lens = [1 + 37 * index % 200 for index in range(count)]
    return [
        Request(tokens(length, seed=index), 20, GREEDY, seed=index, arrival=index % 5)
        for index, length in enumerate(lens)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_same_ids_as_on_a_cpu_in_any_batch(size: str) -> None:
    """Mixed steps and captured ones with padding, in float32."""
    expected = Driver(make(size, "cpu")).run(requests(12))
    graphed = make(size, "cuda:0", warm=True)
    assert Driver(graphed).run(requests(12)) == expected
    assert Driver(make(size, "cuda:0")).run(requests(12)) == expected
    alone = [Driver(graphed).run([each])[0] for each in requests(12)[:4]]
    assert alone == expected[:4]
    assert len({tuple(ids) for ids in expected}) == 12


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_mixtures_in_one_are_those_step_by_step(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fused kernels start on this machine, nothing having been said against them."""
    from luce.engine.ops.triton import moe_few

    engine, _ = hybrid_engine("tiny-moe", open_device("cuda:0"), 16, 4096, 640, Storage(kind))
    ids = tokens(moe_few.MOST_TOKENS - 3, seed=4)
    found = logits(engine, ids)
    assert "step by step" not in caplog.text
    assert "left out" not in caplog.text
    assert "kernel by kernel" not in caplog.text
    monkeypatch.setattr(moe_few, "MOST_TOKENS", 0)
    expected = logits(engine, ids)
    # A router in bfloat16 sends a token that is nearly a tie elsewhere.
    assert 0 < ((found - expected).norm() / expected.norm()).item() < 0.15


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_row_of_a_quantised_mixture_depends_on_none_other(kind: str) -> None:
    """A step of five single tokens, and of one of them alone, in the fused kernels."""
    engine, _ = hybrid_engine("tiny-moe", open_device("cuda:0"), 16, 4096, 640, Storage(kind))
    layer = engine._runner.model._layers[0]
    hidden = torch.randn(5, 256, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        whole = layer.mlp.forward(hidden.clone())
        for row in range(5):
            assert torch.equal(layer.mlp.forward(hidden[row : row + 1].clone())[0], whole[row])


def test_a_saved_state_is_where_another_row_goes_on() -> None:
    engine = make("tiny", "cuda:0", warm=True)
    ids, shared = tokens(90, seed=3), tuple(range(1, 5))
    first, rest = tuple(ids[:64]), tuple(ids[64:])
    save = ScheduledSequence(2, 0, first, shared, sample=False, save_checkpoint=1)
    engine.step(StepPlan(1, (start(2, ids),), (save,))).result()
    on = ScheduledSequence(2, 64, rest, (*shared, 5, 6), sample=True)
    expected = engine.step(StepPlan(2, (), (on,))).result().token_ids
    again = ScheduledSequence(7, 64, rest, (*shared, 7, 8), sample=True)
    plan = StepPlan(3, (start(7, ids, restore=1),), (again,))
    assert engine.step(plan).result().token_ids == expected
    states = engine._runner.states
    assert states is not None
    for layer in states.layers:
        assert torch.equal(layer.recurrent[7], layer.recurrent[2])
        assert torch.equal(layer.conv[7], layer.conv[2])
        assert layer.recurrent[2].any()
