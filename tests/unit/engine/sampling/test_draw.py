"""Drawing against a float64 reference written from the definition, token by token."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from luce.engine.sampling import draw as module
from luce.engine.sampling.draw import DrawParams, draw, kept_probabilities

PLAIN = DrawParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=0.5)
CASES = [
    PLAIN,
    replace(PLAIN, temperature=0.3),
    replace(PLAIN, temperature=2.5),
    replace(PLAIN, top_k=5),
    replace(PLAIN, top_k=1),
    replace(PLAIN, top_k=10_000),
    replace(PLAIN, top_p=0.7),
    replace(PLAIN, top_p=0.0001),
    replace(PLAIN, top_p=0.9999),
    replace(PLAIN, min_p=0.2),
    replace(PLAIN, min_p=1.0),
    replace(PLAIN, temperature=0.8, top_k=12, top_p=0.8, min_p=0.05),
    replace(PLAIN, temperature=1.7, top_k=3, top_p=0.5),
]


def reference(logits: list[float], params: DrawParams) -> list[float]:
    """Normalised float64 probabilities by the chain's definition."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if 0 < params.top_k < len(logits):
        order = order[: params.top_k]
    best = logits[order[0]]
    weights = {token: math.exp((logits[token] - best) / params.temperature) for token in order}
    total = sum(weights.values())
    probs = {token: weight / total for token, weight in weights.items()}
    most = max(probs.values())
    probs = {token: prob for token, prob in probs.items() if prob >= params.min_p * most}
    if 0 < params.top_p < 1:
        total, mass, kept = sum(probs.values()), 0.0, {}
        for token in order:
            if token in probs and mass < params.top_p * total:
                kept[token] = probs[token]
                mass += probs[token]
        probs = kept
    total = sum(probs.values())
    return [probs.get(token, 0.0) / total for token in range(len(logits))]


def normalised(probs: torch.Tensor) -> torch.Tensor:
    return probs.double() / probs.double().sum(-1, keepdim=True)


def some_logits(rows: int, vocab_size: int = 50, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab_size, generator=generator) * 2


@pytest.mark.parametrize("params", CASES)
def test_distribution(params: DrawParams) -> None:
    logits = some_logits(4)
    found = normalised(kept_probabilities(logits, [params] * 4))
    expected = torch.tensor(
        [reference(row, params) for row in logits.tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    assert ((found > 0) == (expected > 0)).all()


def test_rows_do_not_leak() -> None:
    logits = some_logits(len(CASES), seed=1)
    together = kept_probabilities(logits, CASES)
    for row, params in enumerate(CASES):
        alone = kept_probabilities(logits[row : row + 1], [params])
        assert torch.equal(together[row : row + 1], alone), params


def test_a_head_that_is_too_short_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = some_logits(6, seed=2)
    params = [replace(PLAIN, top_p=share) for share in (0.1, 0.5, 0.8, 0.9, 0.99, 0.999)]
    whole = kept_probabilities(logits, params)
    for head in (1, 2, 10):
        monkeypatch.setattr(module, "_HEAD", head)
        assert torch.equal(kept_probabilities(logits, params), whole)


def test_draw_inverts_the_distribution() -> None:
    """Sweeping the uniform number hits each token for its share of the sweep."""
    params = replace(PLAIN, temperature=0.9, top_k=8, top_p=0.9)
    logits = some_logits(1, seed=3)
    steps = 2000
    sweep = [replace(params, uniform=(step + 0.5) / steps) for step in range(steps)]
    ids = draw(logits.expand(steps, -1), sweep).tolist()
    assert ids == sorted(ids)
    counts = Counter(ids)
    for token, prob in enumerate(reference(logits[0].tolist(), params)):
        assert counts[token] / steps == pytest.approx(prob, abs=2 / steps)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-53])
def test_ends_of_the_unit_interval(uniform: float) -> None:
    logits = torch.tensor([[-math.inf, 3.0, -1000.0, 2.0, -math.inf]])
    expected = 1 if uniform == 0 else 3
    assert draw(logits, [replace(PLAIN, uniform=uniform)]).tolist() == [expected]


def test_ties_at_a_cut_all_stay() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    kept = kept_probabilities(logits, [replace(PLAIN, top_k=2)])
    assert (kept > 0).tolist() == [[False, True, True, True, False]]


def test_tiny_temperature_is_greedy() -> None:
    logits = some_logits(3, seed=4)
    params = replace(PLAIN, temperature=1e-30, uniform=0.999)
    assert draw(logits, [params] * 3).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-46, 5e-324])
def test_a_temperature_that_float32_does_not_know_is_greedy(temperature: float) -> None:
    logits = some_logits(3, seed=4)
    params = replace(PLAIN, temperature=temperature, top_k=5, uniform=0.999)
    assert draw(logits, [params] * 3).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e308])
def test_a_huge_temperature_is_uniform_over_what_top_k_keeps(temperature: float) -> None:
    logits = some_logits(1, seed=6)
    params = replace(PLAIN, temperature=temperature, top_k=5)
    found = normalised(kept_probabilities(logits, [params]))
    best = logits.topk(5).indices
    expected = torch.zeros(1, 50, dtype=torch.float64).scatter(1, best, 0.2)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_numbers(value: float) -> None:
    logits = some_logits(2, seed=5)
    logits[0, 7] = value
    first, second = draw(logits, [replace(PLAIN, top_k=5, top_p=0.9)] * 2).tolist()
    assert first == -1
    assert second >= 0
