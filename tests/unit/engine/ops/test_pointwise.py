"""Token-wise operations: float64 definitions, the reference, and the CPU's own against it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from luce.engine.ops.cpu import pointwise as cpu
from luce.engine.ops.ref import pointwise as ref

TOKENS, HEADS, DIM = 5, 3, 8
EPS = 1e-5


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def angles() -> torch.Tensor:
    turns = noise(TOKENS, 1, DIM // 2, seed=9)
    return torch.stack((turns.cos(), turns.sin()), dim=-1)


@pytest.mark.parametrize("norm", [cpu.rms_norm, ref.rms_norm])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm(norm: Callable[..., torch.Tensor], scale: float) -> None:
    x, weight = noise(TOKENS, 48) * scale, noise(48, seed=1)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    torch.testing.assert_close(norm(x, weight, EPS).double(), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_zeros_and_of_slices() -> None:
    assert cpu.rms_norm(torch.zeros(2, 4), torch.ones(4), EPS).tolist() == [[0.0] * 4] * 2
    heads = noise(TOKENS, 6, DIM)
    weight = noise(DIM, seed=1)
    part = heads[:, 2:4]
    torch.testing.assert_close(
        cpu.rms_norm(part, weight, EPS), ref.rms_norm(part.contiguous(), weight, EPS)
    )


def test_rms_norm_rounds_before_the_weight() -> None:
    """In bfloat16 the order shows: normalise, round, multiply, round."""
    x, weight = noise(4, 64).bfloat16(), noise(64, seed=2).bfloat16()
    wide = x.float()
    normal = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).bfloat16()
    found = ref.rms_norm(x, weight, EPS)
    assert torch.equal(found, normal * weight)
    assert not torch.equal(
        found, (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight).bfloat16()
    )


@pytest.mark.parametrize("rotate", [cpu.rotate_half, ref.rotate_half])
def test_rotate_half(rotate: Callable[..., None]) -> None:
    x, rotary = noise(TOKENS, HEADS, DIM), angles()
    expected = x.clone()
    for pair in range(DIM // 2):
        cosine, sine = rotary[:, :, pair, 0], rotary[:, :, pair, 1]
        a, b = x[..., pair], x[..., pair + DIM // 2]
        expected[..., pair] = a * cosine - b * sine
        expected[..., pair + DIM // 2] = b * cosine + a * sine
    rotate(x, rotary)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("rotate", [cpu.rotate_interleaved, ref.rotate_interleaved])
def test_rotate_interleaved(rotate: Callable[..., None]) -> None:
    x, rotary = noise(TOKENS, HEADS, DIM), angles()
    expected = x.clone()
    for pair in range(DIM // 2):
        cosine, sine = rotary[:, :, pair, 0], rotary[:, :, pair, 1]
        a, b = x[..., 2 * pair], x[..., 2 * pair + 1]
        expected[..., 2 * pair] = a * cosine - b * sine
        expected[..., 2 * pair + 1] = b * cosine + a * sine
    rotate(x, rotary)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("rotate", [cpu.rotate_half, cpu.rotate_interleaved])
def test_rotate_a_part_of_the_heads(rotate: Callable[..., None]) -> None:
    """A view into a larger tensor is rotated in place and its neighbours are left alone."""
    packed, rotary = noise(TOKENS, 7, DIM), angles()
    before, alone = packed.clone(), packed[:, :4].clone()
    rotate(packed[:, :4], rotary)
    rotate(alone, rotary)
    assert torch.equal(packed[:, :4], alone)
    assert torch.equal(packed[:, 4:], before[:, 4:])


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    q, k = noise(1, 1, DIM), noise(1, 1, DIM, seed=3)

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        turns = position * torch.tensor([1.0, 0.3, 0.1, 0.02]).view(1, 1, -1)
        out = x.clone()
        cpu.rotate_half(out, torch.stack((turns.cos(), turns.sin()), dim=-1))
        return out

    near = (turned(q, 9) * turned(k, 4)).sum()
    far = (turned(q, 105) * turned(k, 100)).sum()
    torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(turned(q, 33).norm(), q.norm())


def test_silu_and_mul() -> None:
    gate_up = noise(TOKENS, 2 * 6)
    gate, up = gate_up[:, :6].double(), gate_up[:, 6:].double()
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(ref.silu_and_mul(gate_up).double(), expected, rtol=1e-5, atol=1e-6)


def test_store_kv_writes_its_slots_and_no_other() -> None:
    cache = torch.full((3, 4, 2, 1, 2), 9.0)
    wide = noise(2, 10)
    kv = wide[:, 6:]  # rows are strided, as in the packed q, k, v
    ref.store_kv(kv, cache, torch.tensor([11, 2]))
    flat = cache.view(12, 4)
    assert torch.equal(flat[11], wide[0, 6:])
    assert torch.equal(flat[2], wide[1, 6:])
    untouched = [slot for slot in range(12) if slot not in (11, 2)]
    assert (flat[untouched] == 9.0).all()
