"""A prompt that the device has no memory for ends alone: row B45 of the specification, on real
engines whose step is run and then lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from resident_worker import ResidentWorker

from luce.errors import DeviceOutOfMemory
from luce.protocol import messages as wire
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import ScheduledSequence, StepPlan
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.tiny_models import tiny_llama, tiny_qwen35
from luce.worker.ports import PendingStep

PROMPTS = {"a": tuple(range(5, 45)), "b": tuple(range(60, 70))}
LARGE = tuple(range(100, 190))


@pytest.mark.parametrize("family", [tiny_llama, tiny_qwen35])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_b45_the_others_go_on_with_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family, prefix_cache: bool
) -> None:
    worker = ResidentWorker(family(tmp_path / "model"), prefix_cache=prefix_cache)
    alone = {
        name: worker.generate(prompt, max_tokens=24, temperature=1.0, seed=7)[0]
        for name, prompt in PROMPTS.items()
    }
    step = worker.model.engine.step

    def short_of_memory(plan: StepPlan) -> PendingStep:
        pending = step(plan)
        if any(_is_of_large(item) for item in plan.items):
            pending.result()
            raise DeviceOutOfMemory("The device is full.")
        return pending

    monkeypatch.setattr(worker.model.engine, "step", short_of_memory)
    for name, prompt in PROMPTS.items():
        worker.loop._handle(_submit(name, prompt))
    for _ in range(6):
        worker.loop._advance()
    early = list(worker.post.sent)
    sent = early + worker.turn(_submit("large", LARGE))
    retired = {each.request_id: each for each in sent if isinstance(each, wire.Retired)}
    assert retired["large"].error == "DeviceOutOfMemory"
    outputs = [each for each in sent if isinstance(each, wire.StepOutput)]
    for name, tokens in alone.items():
        deltas = [d for each in outputs for d in each.deltas if d.request_id == name]
        assert [token for delta in deltas for token in delta.token_ids] == tokens
        assert retired[name].error == ""
    worker.close()


def _is_of_large(item: ScheduledSequence) -> bool:
    return bool(item.token_ids) and item.token_ids[0] == LARGE[item.start]


def _submit(name: str, prompt: tuple[int, ...]) -> wire.Submit:
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=7)
    return wire.Submit(name, pack_prompt(prompt), params)
