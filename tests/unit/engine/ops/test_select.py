"""Choosing implementations: order, reasons, record."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.candidates import Candidate, OpRequest, choose
from luce.engine.ops.cpu import linear as cpu_linear
from luce.engine.ops.cpu import pointwise as cpu_pointwise
from luce.engine.ops.ref import linear as ref_linear
from luce.engine.ops.ref import pointwise as ref_pointwise
from luce.engine.ops.select import OpSet, select_ops


def request(
    device: str = "cpu", dtype: torch.dtype = torch.float32, *, interleaved: bool = False
) -> OpRequest:
    return OpRequest(torch.device(device), dtype, HeadShape(4, 2, 8), interleaved)


def names(ops: OpSet) -> dict[str, str]:
    return {choice.op: choice.chosen for choice in ops.choices}


def test_first_that_does_not_refuse() -> None:
    candidates = [
        Candidate("a", 1, lambda _: "too old"),
        Candidate("b", 2, lambda _: None),
        Candidate("c", 3, lambda _: None),
    ]
    implementation, choice = choose("op", candidates, request())
    assert implementation == 2
    assert (choice.op, choice.chosen, choice.refused) == ("op", "b", (("a", "too old"),))


def test_all_refusing_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="too old"):
        choose("op", [Candidate("a", 1, lambda _: "too old")], request())


def test_cpu_float32() -> None:
    ops = select_ops(request())
    assert names(ops) == {
        "native": "native",
        "linear": "onednn",
        "quantised": "decoded_at_load",
        "fp8": "decoded_at_load",
        "rms_norm": "native",
        "rotate": "cpu",
        "attention": "cpu_grouped",
    }
    assert ops.quantised is ops.fp8 is None
    assert ops.rotate is cpu_pointwise.rotate_half
    assert select_ops(request(interleaved=True)).rotate is cpu_pointwise.rotate_interleaved


def test_cpu_bfloat16_takes_the_reference_where_the_fast_one_is_for_float32() -> None:
    ops = select_ops(request(dtype=torch.bfloat16, interleaved=True))
    assert names(ops)["linear"] == names(ops)["rms_norm"] == names(ops)["rotate"] == "ref"
    assert names(ops)["attention"] == "cpu_grouped"
    assert ops.rotate is ref_pointwise.rotate_interleaved
    at_load = ("quantised", "fp8")
    reasons = [
        reason for choice in ops.choices if choice.op not in at_load for _, reason in choice.refused
    ]
    assert reasons
    assert all("float32" in reason for reason in reasons)


def test_other_devices_take_the_reference() -> None:
    ops = select_ops(request("meta"))
    assert set(names(ops).values()) == {"none", "ref"}


def test_a_failed_probe_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "refusal", lambda: "the probe failed")
    ops = select_ops(request())
    assert ops.pack_linear is ref_linear.PlainLinear
    linear = next(choice for choice in ops.choices if choice.op == "linear")
    assert linear.refused == (("onednn", "the probe failed"),)
