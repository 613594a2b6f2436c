"""Memory of steps grows with what makes steps larger."""

from __future__ import annotations

from dataclasses import replace

from luce.loaders.hparams import Experts, HParams, LinearAttention
from luce.sizing.steps import (
    GRAPH_BYTES,
    STEP_MARGIN_BYTES,
    device_step_bytes,
    kept_step_bytes,
    padded_sizes,
    prompt_sizes,
    scratch_bytes,
)
from luce.testing.headers import SMALL

BASE = scratch_bytes(SMALL, 512, 4, 4)


def grown(hparams: HParams = SMALL, chunk: int = 512, rows: int = 4) -> bool:
    return scratch_bytes(hparams, chunk, rows, 4) > BASE


def test_scratch_grows_with_chunk_and_rows() -> None:
    assert grown(chunk=4096)
    assert grown(rows=64)


def test_scratch_is_of_the_widest_layer() -> None:
    linear = LinearAttention(
        ("linear_attention", "full_attention"), 4, 8, 64, 64, 4, "grouped", True
    )
    assert grown(replace(SMALL, gated_attention=True))
    assert grown(replace(SMALL, linear_attention=linear))
    assert grown(replace(SMALL, experts=Experts(8, 4, 64, 64, True)))


def test_steps_on_a_gpu_hold_a_graph_for_each_size() -> None:
    rows = 48
    prompts = {0: 0, 50: 3, 64: 3, 512: 9, 100_000: 15}
    for chunk, count in prompts.items():
        found = device_step_bytes(BASE, rows, chunk)
        num_graphs = len(padded_sizes(rows)) + count
        assert found == 2 * BASE + num_graphs * GRAPH_BYTES + STEP_MARGIN_BYTES
        assert len(prompt_sizes(rows, chunk)) == count


def test_steps_of_a_model_that_is_away_keep_graphs_and_logits() -> None:
    """Lanes of the largest leave logits, in the model's type and in float32."""
    one, two = kept_step_bytes(SMALL, 1, 2), kept_step_bytes(SMALL, 2, 2)
    wider = kept_step_bytes(replace(SMALL, vocab_size=SMALL.vocab_size + 1), 2, 2)
    assert two - one > GRAPH_BYTES
    assert wider - two == 2 * (2 + 4)
