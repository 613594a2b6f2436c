"""The residual stream behind each block, against transformers' tuple of hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from engine_harness import random_ids
from reference import reference_model
from resident_worker import ResidentWorker

from luce.protocol import messages as wire
from luce.protocol.sampling import HiddenRead, SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.tiny_models import tiny_llama, tiny_qwen2, tiny_qwen3, tiny_qwen3moe, tiny_qwen35

FAMILIES = {
    "llama": tiny_llama,
    "qwen2": tiny_qwen2,
    "qwen3": tiny_qwen3,
    "qwen3moe": tiny_qwen3moe,
    "qwen35": tiny_qwen35,
}
Array = npt.NDArray[np.float32]


def expected_states(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """f32 [layers, tokens, hidden]: behind each block, before the final norm."""
    seen: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output).view(len(ids), -1))

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    with torch.inference_mode():
        model(torch.tensor([list(ids)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen)


def array(stored: bytes, layers: int) -> Array:
    return np.frombuffer(stored, dtype="<f4").reshape(layers, -1)


def error(found: Array, expected: torch.Tensor) -> float:
    there = expected.numpy()
    return float(np.abs(found - there).max() / np.abs(there).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_last_and_mean_of_every_block(tmp_path: Path, family: str) -> None:
    folder = FAMILIES[family](tmp_path / "hf", container="safetensors")
    ids = random_ids(75, 280, seed=1)
    expected = expected_states(reference_model(folder), ids)
    layers = tuple(range(len(expected)))
    worker = ResidentWorker(folder, chunk=32, cpu_exact=True)
    found = worker.read((ids, HiddenRead(layers, wants_mean=True)))[0]
    assert error(array(found.last, len(layers)), expected[:, -1]) < 1e-4
    assert error(array(found.mean, len(layers)), expected.mean(1)) < 1e-4
    worker.close()


def test_entries_of_transformers_tuple(tmp_path: Path) -> None:
    """Index k is entry k + 1; the tuple's last entry is normalised, ours is not."""
    folder = tiny_llama(tmp_path, container="safetensors")
    ids = random_ids(40, 280, seed=2)
    model = reference_model(folder)
    with torch.inference_mode():
        entries = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    worker = ResidentWorker(folder, cpu_exact=True)
    found = worker.read((ids, HiddenRead((0, 1, 2))))[0]
    ours = array(found.last, 3)
    assert found.mean == b""
    for layer in (0, 1):
        assert error(ours[layer], entries[layer + 1][0, -1]) < 1e-4
    normed = model.model.norm(torch.from_numpy(ours[2].copy())).detach().numpy()
    assert error(normed, entries[3][0, -1]) < 1e-4
    worker.close()


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory):
    path = tiny_llama(tmp_path_factory.mktemp("llama"))
    worker = ResidentWorker(path, chunk=32)
    yield worker
    worker.close()


def test_side_by_side_as_alone(worker: ResidentWorker) -> None:
    prompts = [random_ids(length, 280, seed=length) for length in (70, 33, 5)]
    read = HiddenRead((0, 2), wants_mean=True)
    alone = [worker.read((prompt, read))[0] for prompt in prompts]
    together = worker.read(*((prompt, read) for prompt in prompts))
    for one, other in zip(alone, together, strict=True):
        for name in ("last", "mean"):
            a, b = (array(getattr(each, name), 2) for each in (one, other))
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_beside_a_generation(worker: ResidentWorker) -> None:
    """Neither is disturbed: the text stays, and so do the states."""
    ids = random_ids(40, 280, seed=9)
    text, _ = worker.generate(ids)
    alone = worker.read((ids, HiddenRead((1,))))[0]
    submit = wire.Submit("text", pack_prompt(ids), SamplingParams(max_tokens=8))
    reading = SamplingParams(max_tokens=1, hidden=HiddenRead((1,)))
    sent = worker.turn(submit, wire.Submit("read", pack_prompt(ids), reading))
    deltas = [d for each in sent if isinstance(each, wire.StepOutput) for d in each.deltas]
    assert [t for d in deltas if d.request_id == "text" for t in d.token_ids] == text
    found = next(d.hidden for d in deltas if d.request_id == "read")
    assert found is not None
    np.testing.assert_allclose(array(found.last, 1), array(alone.last, 1), rtol=1e-3, atol=1e-4)


def test_nothing_of_it_is_kept_unless_asked(worker: ResidentWorker) -> None:
    ids = random_ids(50, 280, seed=11)
    assert worker.read((ids, HiddenRead((0,))))[0].cached_tokens == 0
    assert worker.generate([*ids, 7])[1] == 0


def test_a_kept_prefix_is_found_and_changes_nothing(worker: ResidentWorker) -> None:
    ids = random_ids(50, 280, seed=12)
    plain = worker.read((ids, HiddenRead((0, 2))))[0]
    kept = worker.read((ids, HiddenRead((0, 2), keeps_prefix=True)))[0]
    assert kept.last == plain.last
    assert kept.cached_tokens == 48
    again = worker.read((ids, HiddenRead((0, 2), keeps_prefix=True)))[0]
    assert again == kept
    assert worker.generate([*ids, 7])[1] == 48


def test_a_kept_prefix_survives_a_swap(worker: ResidentWorker) -> None:
    ids = random_ids(50, 280, seed=13)
    kept = worker.read((ids, HiddenRead((1,), keeps_prefix=True)))[0]
    worker.control("evict", "cold")
    worker.control("reinstate")
    assert worker.generate([*ids, 7])[1] == 48
    assert worker.read((ids, HiddenRead((1,))))[0].last == kept.last


def test_without_a_prefix_cache_nothing_is_kept(tmp_path: Path) -> None:
    worker = ResidentWorker(tiny_llama(tmp_path), prefix_cache=False)
    ids = random_ids(50, 280, seed=14)
    assert worker.read((ids, HiddenRead((1,), keeps_prefix=True)))[0].cached_tokens == 0
    worker.close()


@pytest.mark.parametrize("layers", [(), (3,), (-4,), (0, 1 << 40)])
def test_layers_the_model_does_not_have(worker: ResidentWorker, layers: tuple[int, ...]) -> None:
    params = SamplingParams(max_tokens=1, hidden=HiddenRead(layers))
    sent = worker.turn(wire.Submit("r", pack_prompt([1, 2]), params))
    refused = next(each for each in sent if isinstance(each, wire.Refused))
    assert (refused.reason, refused.error) == ("failed", "InvalidRequest")


def test_states_that_are_no_numbers_fail_their_request(tmp_path: Path) -> None:
    worker = ResidentWorker(tiny_llama(tmp_path), cpu_exact=True)
    ids = random_ids(40, 280, seed=15)
    table = worker.model.engine._weights.built.model._embedding.table
    with torch.inference_mode():
        table[ids[3]] = float("nan")
    read = HiddenRead((0,), keeps_prefix=True)
    params = SamplingParams(max_tokens=1, hidden=read)
    sent = worker.turn(wire.Submit("r", pack_prompt(ids), params))
    retired = next(each for each in sent if isinstance(each, wire.Retired))
    assert (retired.finish, retired.error) == ("error", "InternalError")
    # What it computed is for nobody to find.
    assert worker.model.scheduler.stats().kv.cached_blocks == 0
    worker.close()
