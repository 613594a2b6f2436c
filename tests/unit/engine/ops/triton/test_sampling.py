"""Sampling kernels against the reference sampler, parameter by parameter."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from luce.engine.device_rows import DeviceRows
from luce.engine.ops.triton.sampling import MAX_BIAS, DeviceSampler, StepLogits
from luce.engine.sampling.masks import TokenMasks, mask_words, set_bits
from luce.engine.sampling.rng import uniform
from luce.engine.sampling.sampler import Sampler
from luce.engine.step_ring import SLOTS, StepRing
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence

VOCAB = 9001
MAX_CTX = 400

PARAMS = {
    "greedy": SamplingParams(max_tokens=9),
    "penalties": SamplingParams(
        max_tokens=9, repetition_penalty=1.7, frequency_penalty=0.5, presence_penalty=0.3
    ),
    "short window": SamplingParams(max_tokens=9, repetition_penalty=3.0, rep_window=7),
    "below one is off": SamplingParams(max_tokens=9, repetition_penalty=0.5),
    "bias": SamplingParams(max_tokens=9, logit_bias={7: 100.0, 8: -5.0, 9000: 100.5}),
    "plain draw": SamplingParams(max_tokens=9, temperature=1.0),
    "cold": SamplingParams(max_tokens=9, temperature=1e-4),
    "top k": SamplingParams(max_tokens=9, temperature=1.5, top_k=5),
    "top k over all": SamplingParams(max_tokens=9, temperature=1.5, top_k=VOCAB + 5),
    "top p": SamplingParams(max_tokens=9, temperature=1.2, top_p=0.6),
    "min p": SamplingParams(max_tokens=9, temperature=2.0, min_p=0.2),
    "all": SamplingParams(
        max_tokens=9,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        min_p=0.01,
        presence_penalty=0.4,
        logit_bias={3: 2.0},
    ),
}


def start_of(row: int, params: SamplingParams, length: int) -> RowStart:
    generator = torch.Generator().manual_seed(row)
    history = torch.randint(0, 60, (length,), generator=generator).tolist()
    return RowStart(
        row, params, seed=0xFEDCBA9876543210 + row, history=tuple(history), num_prompt_tokens=length
    )


def logits_of(rows: int, seed: int) -> torch.Tensor:
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    # Ties, and tokens of the history among the likely ones.
    logits[:, 100:103] = logits[:, 500:501]
    logits[:, :60] += 4
    return logits


class Pair:
    """The reference on the CPU and the kernels, told the same."""

    def __init__(self, device: torch.device, starts: list[RowStart]) -> None:
        self.reference = Sampler(len(starts), VOCAB, MAX_CTX, torch.device("cpu"))
        self.rows = DeviceRows(len(starts), MAX_CTX, 16, VOCAB, device)
        self.kernels = DeviceSampler(self.rows.params)
        self.rows.start(starts)
        self.rows.bring_histories(starts)
        for start in starts:
            self.reference.start(start)
        self.starts = starts

    def sample(
        self, logits: torch.Tensor, step: int, masks: TokenMasks | None = None
    ) -> tuple[list[int], list[int]]:
        rows = [start.row for start in self.starts]
        lanes = torch.tensor(
            [[each.row, len(each.history) - 1 + step, 0, step] for each in self.starts],
            dtype=torch.int32,
        ).to(self.rows.device)
        device = self.rows.device
        mine = self.kernels.adjust(logits.clone().to(device), lanes)
        assert mine.is_narrow == (logits.dtype != torch.float32)
        if masks is not None:
            lines = torch.tensor(masks.lines, dtype=torch.int32, device=device)
            self.kernels.mask(mine, lines, torch.from_numpy(masks.words).to(device))
        found = self.kernels.choose(mine, lanes).tolist()
        if masks is None:
            few = 3
            captured = [
                self._sample_captured(mine, logits[at : at + few], lanes[at : at + few], at)
                for at in range(0, len(rows), few)
            ]
            assert [token for tokens in captured for token in tokens] == found
        wide = logits.float().clone()
        expected = self.reference.sample(wide, rows, [step] * len(rows), masks).tolist()
        return found, expected

    def _sample_captured(
        self, adjusted: StepLogits, logits: torch.Tensor, lanes: torch.Tensor, first: int
    ) -> list[int]:
        """As captured steps of few lanes: a kernel less, and the tokens go to the ring as well."""
        ring = StepRing(len(lanes), (0, 0, 0, 0), lanes.device)
        ring.place.state[1] = SLOTS - 1
        raw = logits.clone().to(lanes.device)
        mine, ids = self.kernels.adjust_and_choose(raw, lanes, ring.place)
        for line, start in enumerate(self.starts[first : first + len(lanes)]):
            if start.sampling.logit_bias:
                assert torch.equal(mine.wide[line], adjusted.wide[first + line])
        assert torch.equal(ring.place.tokens[SLOTS - 1], ids)
        assert ring.place.state.tolist() == [0, SLOTS - 1]
        tokens: list[int] = ids.tolist()
        return tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_equals_the_reference(device: torch.device, dtype: torch.dtype) -> None:
    starts = [start_of(row, params, 90 + row) for row, params in enumerate(PARAMS.values())]
    pair = Pair(device, starts)
    drawn = set()
    for step in range(2):
        found, expected = pair.sample(logits_of(len(starts), step).to(dtype), step)
        assert dict(zip(PARAMS, found, strict=True)) == dict(zip(PARAMS, expected, strict=True))
        drawn |= set(found)
    assert len(drawn) > len(PARAMS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_equal_the_reference(device: torch.device, dtype: torch.dtype) -> None:
    starts = [start_of(row, params, 40) for row, params in enumerate(PARAMS.values())]
    pair = Pair(device, starts)
    words = np.random.default_rng(1).integers(-(2**31), 2**31, (4, mask_words(VOCAB)), np.int32)
    words[1] = 0
    set_bits(words[1], (VOCAB - 1,), allowed=True)
    masks = TokenMasks((0, 3, 6, len(starts) - 1), words)
    logits = logits_of(len(starts), 5).to(dtype)
    found, expected = pair.sample(logits, 0, masks)
    assert dict(zip(PARAMS, found, strict=True)) == dict(zip(PARAMS, expected, strict=True))
    assert found[3] == VOCAB - 1
    free, _ = pair.sample(logits, 1)
    assert found != free


def test_the_chosen_token_enters_the_history(device: torch.device) -> None:
    pair = Pair(device, [start_of(0, PARAMS["greedy"], 5)])
    found, _ = pair.sample(logits_of(1, 3), 0)
    assert pair.rows.params.tokens[0, 5].item() == found[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["greedy", "plain draw"])
def test_broken_logits_are_marked(device: torch.device, name: str, value: float) -> None:
    pair = Pair(device, [start_of(0, PARAMS[name], 5), start_of(1, PARAMS[name], 5)])
    logits = logits_of(2, 3)
    logits[0, 8500] = value
    found, expected = pair.sample(logits, 0)
    assert found == expected
    assert (found[0], found[1] >= 0) == (-1, True)
    assert pair.rows.params.tokens[0, 5].item() == 0


def test_draws_follow_the_random_number(device: torch.device) -> None:
    """Two tokens of weight a half each: the number alone decides."""
    pair = Pair(device, [start_of(0, PARAMS["plain draw"], 5)])
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, [40, 8000]] = 1.0
    seed = pair.starts[0].seed
    for step in range(6):
        found, _ = pair.sample(logits, step)
        assert found == [40 if uniform(seed, step) < 0.5 else 8000]


def test_who_reads_tokens_in_the_step_that_starts_them(device: torch.device) -> None:
    rows = DeviceRows(3, MAX_CTX, 16, VOCAB, device)
    plain = start_of(0, SamplingParams(max_tokens=9), 5)
    prompt = ScheduledSequence(0, 0, plain.history, (1,), sample=True)
    goes_on = ScheduledSequence(0, 5, (), (1,), sample=True)
    assert not rows.reads_histories([plain], [prompt, replace(goes_on, row=1)])
    assert rows.reads_histories([plain], [goes_on])
    assert rows.reads_histories([plain, start_of(2, PARAMS["penalties"], 5)], [prompt])
    rows.bring_histories([plain])
    assert tuple(rows.params.tokens[0, :5].tolist()) == plain.history


def test_more_biases_than_the_kernels_hold_are_kept_apart(device: torch.device) -> None:
    many = SamplingParams(max_tokens=9, logit_bias=dict.fromkeys(range(MAX_BIAS + 1), 1.0))
    rows = DeviceRows(2, MAX_CTX, 16, VOCAB, device)
    rows.start([start_of(0, many, 5), start_of(1, PARAMS["bias"], 5)])
    assert rows.has_long_bias([0, 1])
    assert not rows.has_long_bias([1])
    logits = torch.zeros(2, VOCAB, device=rows.device)
    rows.add_long_biases(logits, [1, 0])
    assert logits[0].abs().max().item() == 0
    assert logits[1].sum().item() == MAX_BIAS + 1
    rows.start([start_of(0, PARAMS["bias"], 5)])
    assert not rows.has_long_bias([0])
