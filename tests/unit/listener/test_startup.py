"""What is logged when a model comes up."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from luce.config.model import ModelConfig
from luce.errors import ModelFileError, StartupError, UsageError
from luce.listener.served import ServedModel
from luce.listener.startup import load_text, report_budgets, report_ready
from luce.protocol.messages import Limits, LoadSpec, Ready
from luce.testing.tiny_models import tiny_llama
from luce.text.budgets import BudgetOptions, resolve_budgets
from luce.text.reasoning import EFFORTS
from luce.text.thinking import Thinking
from luce.workers.handle import WorkerHandle, WorkerState


def ready(max_ctx: int) -> Ready:
    limits = Limits(max_ctx=max_ctx, max_concurrency=3, kv_pool_tokens=512, block_tokens=16)
    return Ready(
        limits=limits,
        architecture="llama",
        device="cpu",
        dtype="float32",
        weights_bytes=1000,
        kv_bytes=2000,
        vocab_size=256,
        load_ms=70,
    )


def model() -> ServedModel:
    handle = WorkerHandle(LoadSpec(name="big", path="fake.gguf"))
    return ServedModel(ModelConfig(path=Path("fake.gguf"), name="big"), handle)


def come_up(served: ServedModel, said: Ready) -> None:
    served.handle.ready, served.handle.state = said, WorkerState.READY
    for _ in range(2):  # Counters change too; that is no news.
        for callback in served.handle.on_change:
            callback()


def test_each_process_says_what_it_resolved(caplog: pytest.LogCaptureFixture) -> None:
    served = model()
    report_ready(served)
    with caplog.at_level(logging.INFO):
        come_up(served, ready(512))
        come_up(served, ready(512))
    assert [record.getMessage() for record in caplog.records] == ["model ready"] * 2
    fields = vars(caplog.records[0])
    expected = {
        "model": "big",
        "architecture": "llama",
        "device": "cpu",
        "dtype": "float32",
        "context": 512,
        "slots": 3,
        "kv_pool_tokens": 512,
        "kv_bytes": 2000,
        "weights_bytes": 1000,
        "load_ms": 70,
    }
    assert {name: fields[name] for name in expected} == expected


@pytest.mark.parametrize(("max_ctx", "is_limited"), [(4096, True), (512, False), (100, False)])
def test_a_pool_smaller_than_the_context_is_told(
    max_ctx: int, is_limited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    served = model()
    report_ready(served)
    come_up(served, ready(max_ctx))
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == is_limited
    if is_limited:
        assert (vars(warned[0])["max_ctx"], vars(warned[0])["context"]) == (4096, 512)


def test_budgets_are_told_as_the_props_have_them(caplog: pytest.LogCaptureFixture) -> None:
    served = model()
    thinking = Thinking(resolve_budgets(BudgetOptions(), None, "fake"))
    served.text = SimpleNamespace(thinking=thinking)
    come_up(served, ready(4096))
    with caplog.at_level(logging.INFO):
        report_budgets(served)
    (record,) = caplog.records
    tiers = vars(record)["effort_tiers"]
    # The pool's 512 tokens are the context; half of them are kept for the reply.
    assert tiers == dict.fromkeys(EFFORTS, 256)
    assert served.budgets is not None
    assert served.budgets.effort_tiers == tiers


class TestBudgetsAtTheStart:
    def config(self, tmp_path: Path, card: dict[str, Any], **options: Any) -> ModelConfig:
        """A model with a card of its own."""
        least = {"name": "x", "source": "y", "verified_at": "z", "max_tokens": 1000}
        (tmp_path / "tiny-llama.json").write_text(json.dumps({**least, **card}), encoding="utf-8")
        return ModelConfig(path=tiny_llama(tmp_path), model_cards=tmp_path, **options)

    def test_options_card_and_model_come_together(self, tmp_path: Path) -> None:
        card = {"sampling": {"top_k": 9}, "hard_limit_reply_budget": 100}
        config = self.config(
            tmp_path, card, max_tokens=500, think_max_tokens=70, reasoning_effort_low=5
        )
        text = load_text(config)
        budgets = text.thinking.budgets
        assert (budgets.default_max_tokens, budgets.think_max_tokens) == (500, 70)
        assert list(budgets.effort_tiers.values()) == [5, 35, 70, 70, 70]
        assert budgets.source == str(tmp_path / "tiny-llama.json")
        assert text.generation_defaults == {"top_k": 9}

    @pytest.mark.parametrize(
        ("card", "options", "error", "message"),
        [
            ({"max_tokens": "many"}, {}, ModelFileError, "max_tokens must be a whole number"),
            (
                {"reasoning_effort_tiers": {"low": 50}},
                {"reasoning_effort_high": 40},
                UsageError,
                "effort high has fewer tokens (40) than low (50)",
            ),
        ],
    )
    def test_a_card_or_options_that_make_no_sense_stop_the_start(
        self,
        tmp_path: Path,
        card: dict[str, Any],
        options: dict[str, Any],
        error: type[StartupError],
        message: str,
    ) -> None:
        with pytest.raises(error) as caught:
            load_text(self.config(tmp_path, card, **options))
        assert message in str(caught.value)
