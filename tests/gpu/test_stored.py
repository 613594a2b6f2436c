"""Quantised weights and typed caches on a GPU: the CPU's logits, and files loaded onto it."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import torch
from bench.engine.shapes import RandomParameters, hparams_of
from engine_harness import Driver, Request, all_logits

from luce.engine.device import open_device
from luce.engine.device_inputs import mixed_step
from luce.engine.engine import Blueprint, Engine
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.options import EngineOptions
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import ScheduledSequence
from luce.sizing.model_sizes import Sizing
from luce.testing.quant_blocks import random_blocks

VOCAB = 1024
GREEDY = SamplingParams(max_tokens=1 << 20)


class Stored(RandomParameters):
    """Matrices of random blocks, the same on every device; values of attention are Q6_K."""

    def __init__(self, type_name: str, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype, device, seed=5)
        self._type = type_name

    def _normal(self, *shape: int, spread: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(shape[0])
        values = torch.empty(*shape).normal_(0.0, spread, generator=generator)
        return values.to(self._device, self._dtype)

    def _planes(self, name: str, shape: tuple[int, int]) -> QuantPlanes:
        kind = "Q6_K" if "v_proj" in name else self._type
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return repack(kind, random_blocks(kind, *shape, generator).to(self._device), *shape)

    def quantised(self, *parts: tuple[str, tuple[int, int]]) -> list[QuantPlanes]:
        return [self._planes(*part) for part in parts]

    def matrix(self, *parts: tuple[str, tuple[int, int]]) -> torch.Tensor:
        return torch.cat([decode(self._planes(*part)) for part in parts]).to(self._dtype)

    def table(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        return self.matrix((name, shape))


def make(device: str, kind: str, dtype: torch.dtype = torch.float32, cache: str = "auto") -> Engine:
    options = EngineOptions(
        path=Path("none"), device=device, max_concurrency=64, max_ctx=640, chunk=256,
        cache_type_k=cache, cache_type_v=cache,
    )  # fmt: skip
    where = open_device(device)
    blueprint = Blueprint(
        "qwen3", hparams_of("tiny"), options, where, dtype, Sizing(640, 2600, 0, 0, 0)
    )
    with torch.inference_mode():
        return Engine(blueprint, Stored(kind, dtype, where.torch), lambda *_: None)


def ids_of(count: int, seed: int = 3) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (count,), generator=generator).tolist()


def last_logits(engine: Engine, ids: list[int]) -> torch.Tensor:
    if engine._executor is None:
        return all_logits(engine, ids, [len(ids)], range(1, 33))[-1]
    item = ScheduledSequence(0, 0, tuple(ids), tuple(range(1, 33)), sample=True)
    with torch.inference_mode():
        found = engine._runner.logits(mixed_step([item], engine._executor._rows, 16).batch)
        assert found is not None
        return found[0].cpu()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("kind", sorted(QUANT_FORMATS))
def test_logits_of_every_type(kind: str) -> None:
    cpu, wide, narrow = (
        make("cpu", kind),
        make("cuda:0", kind),
        make("cuda:0", kind, torch.bfloat16),
    )
    assert "quantised=triton" in wide.resolved.kernels
    assert "quantised=cuda" in narrow.resolved.kernels
    for count in (1, 5, 40, 200):
        ids = ids_of(count)
        expected = last_logits(cpu, ids)
        assert error(last_logits(wide, ids), expected) < 2e-3
        # Random offsets add up to a common part many times the rest, which bfloat16 rounds.
        assert error(last_logits(narrow, ids), expected) < 0.2


@pytest.mark.parametrize("cache", ["f16", "q8_0", "q4_0"])
def test_logits_of_every_cache_type(cache: str) -> None:
    cpu, gpu = make("cpu", "Q8_0", cache=cache), make("cuda:0", "Q8_0", cache=cache)
    for count in (3, 130, 300):
        ids = ids_of(count)
        assert error(last_logits(gpu, ids), last_logits(cpu, ids)) < 1e-2


@pytest.mark.parametrize(("kind", "cache"), [("Q4_K", "auto"), ("Q8_0", "q8_0"), ("Q6_K", "q4_0")])
def test_graphs_chunks_and_preemption_do_not_matter(kind: str, cache: str) -> None:
    eager, graphed = make("cuda:0", kind, cache=cache), make("cuda:0", kind, cache=cache)
    graphed.warm_up()

    def requests() -> list[Request]:
        return [Request(ids_of(20 + 11 * i, seed=i), 12, GREEDY, arrival=i % 3) for i in range(6)]

    expected = Driver(eager).run(requests())
    assert Driver(graphed).run(requests()) == expected
    again = requests()
    again[2].preempt_at = 5
    found = Driver(graphed, shuffle=1).run(again)
    # Prompts of unlike chunks go through other products: their last bits may decide a tie.
    assert sum(mine == theirs for mine, theirs in zip(found, expected, strict=True)) >= 5


@pytest.mark.parametrize("quant", ["Q4_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16"])
def test_files_load_onto_the_gpu(tmp_path: Path, quant: str) -> None:
    pytest.importorskip("gguf")
    from luce.testing.tiny_models import tiny_llama, tiny_qwen3

    for family in (tiny_llama, tiny_qwen3):
        path = family(tmp_path / family.__name__, quant=quant)
        cpu, gpu = (load(path, device) for device in ("cpu", "cuda:0"))
        ids = [token % 280 for token in ids_of(50)]
        assert error(last_logits(gpu, ids), last_logits(cpu, ids)) < 2e-3


def load(path: Path, device: str) -> Engine:
    heard: list[tuple[str, int, int]] = []
    options = EngineOptions(path=path, device=device, dtype="float32", max_ctx=512)
    engine = Engine.load(options, lambda *event: heard.append(event))
    assert heard[-1][1] == heard[-1][2]
    return engine
