"""Rotary frequencies and their scalings, by their formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from luce.engine.layers.rotary import RotaryTable, attention_factor, inverse_frequencies
from luce.errors import ModelFileError
from luce.loaders.hparams import HParams, RopeScaling

CPU = torch.device("cpu")
HPARAMS = HParams(
    architecture="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_scaling=None,
    rope_layout="half",
    context_length=512,
    tie_word_embeddings=True,
    attention_bias=False,
    qk_norm=False,
)


def scaled(**scaling: object) -> HParams:
    return replace(HPARAMS, rope_scaling=RopeScaling(**scaling))  # type: ignore[arg-type]


def test_plain_frequencies() -> None:
    found = inverse_frequencies(HPARAMS).tolist()
    assert found == pytest.approx([10_000 ** (-2 * pair / 32) for pair in range(16)], rel=1e-12)


def test_linear() -> None:
    found = inverse_frequencies(scaled(kind="linear", factor=4.0))
    torch.testing.assert_close(found * 4, inverse_frequencies(HPARAMS))


def test_llama3_keeps_short_waves_divides_long_ones_blends_between() -> None:
    plain = inverse_frequencies(HPARAMS)
    found = inverse_frequencies(
        scaled(
            kind="llama3",
            factor=8.0,
            original_context=1024,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        )
    )
    waves = 2 * math.pi / plain
    short, long = waves < 1024 / 4, waves > 1024
    assert short.any()
    assert long.any()
    torch.testing.assert_close(found[short], plain[short])
    torch.testing.assert_close(found[long], plain[long] / 8)
    between = ~short & ~long
    assert between.any()
    assert (found[between] < plain[between]).all()
    assert (found[between] > plain[between] / 8).all()


def test_yarn_keeps_fast_pairs_and_divides_slow_ones() -> None:
    plain = inverse_frequencies(HPARAMS)
    found = inverse_frequencies(scaled(kind="yarn", factor=4.0, original_context=4096))
    torch.testing.assert_close(found[0], plain[0])
    torch.testing.assert_close(found[-1], plain[-1] / 4)
    ratio = found / plain
    assert (ratio[1:] <= ratio[:-1] + 1e-12).all()


def test_attention_factor() -> None:
    assert attention_factor(None) == 1.0
    assert attention_factor(RopeScaling(kind="linear", factor=4.0)) == 1.0
    yarn = RopeScaling(kind="yarn", factor=4.0, original_context=64)
    assert attention_factor(yarn) == pytest.approx(0.1 * math.log(4) + 1)
    assert attention_factor(replace(yarn, factor=1.0)) == 1.0
    assert attention_factor(replace(yarn, attention_factor=1.25)) == 1.25


def test_table() -> None:
    table = RotaryTable(HPARAMS, 300, None, CPU)
    found = table.lookup(torch.tensor([0, 299, 7], dtype=torch.int32))
    assert found.shape == (3, 1, 16, 2)
    assert found.dtype == torch.float32
    for row, position in enumerate((0, 299, 7)):
        for pair in range(16):
            angle = position * 10_000 ** (-2 * pair / 32)
            expected = (math.cos(angle), math.sin(angle))
            assert found[row, 0, pair].tolist() == pytest.approx(expected, abs=1e-6)
    assert table.nbytes == 300 * 16 * 2 * 4


def test_table_divides_by_stored_factors() -> None:
    divisors = torch.tensor([1.0] * 8 + [8.0] * 8)
    positions = torch.tensor([40], dtype=torch.int32)
    found = RotaryTable(HPARAMS, 50, divisors, CPU).lookup(positions)[0, 0]
    plain = RotaryTable(HPARAMS, 50, None, CPU)
    torch.testing.assert_close(found[:8], plain.lookup(positions)[0, 0, :8])
    eighth = torch.tensor([5], dtype=torch.int32)
    torch.testing.assert_close(found[8:], plain.lookup(eighth)[0, 0, 8:])


def test_table_carries_the_attention_factor() -> None:
    hparams = scaled(kind="yarn", factor=4.0, original_context=64, attention_factor=1.5)
    first = RotaryTable(hparams, 4, None, CPU).lookup(torch.tensor([0], dtype=torch.int32))
    assert (first[0, 0, :, 0] == 1.5).all()
    assert (first[0, 0, :, 1] == 0.0).all()


@pytest.mark.parametrize(
    ("base", "scaling"),
    [
        (1.0, RopeScaling(kind="yarn", factor=4.0, original_context=128)),
        (1e4, RopeScaling(kind="yarn", factor=4.0, original_context=0)),
        (-2.0, None),
        (1e4, RopeScaling(kind="linear", factor=0.0)),
        (
            1e4,
            RopeScaling(
                kind="llama3",
                factor=2.0,
                original_context=0,
                low_freq_factor=0.0,
                high_freq_factor=0.0,
            ),
        ),
    ],
)
def test_parameters_that_make_no_frequencies(base: float, scaling: RopeScaling | None) -> None:
    hparams = replace(HPARAMS, rope_theta=base, rope_scaling=scaling)
    with pytest.raises(ModelFileError, match=f"rotary frequencies cannot .* base {base:g} "):
        RotaryTable(hparams, 8, None, CPU)


def test_divisors_that_make_no_frequencies() -> None:
    with pytest.raises(ModelFileError, match="not finite"):
        RotaryTable(HPARAMS, 8, torch.zeros(16), CPU)
