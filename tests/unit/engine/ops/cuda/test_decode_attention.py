"""Decode attention's own text, on the host: against the definition, and its independence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.cuda import decode_attention
from luce.engine.ops.cuda.decode_attention import refusal
from luce.engine.ops.cuda.decode_choice import try_kernel
from luce.engine.ops.decode_pieces import pieces_of
from luce.engine.ops.triton.paged_attention_decode import DecodeScratch
from luce.engine.ops.triton.probe import TrialError
from support.cuda_host import COMPILER, EmulationError, HostDevice

CPU = torch.device("cpu")
HEADS = HeadShape(num_heads=6, num_kv_heads=2, head_dim=64)
MAX_CTX = 800


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU that holds three blocks of threads."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice()

    def forget() -> None:
        decode_attention._compiled.cache_clear()

    monkeypatch.setattr(decode_attention, "compiled_kernel", device.compiled_kernel)
    limits = KernelLimits(1, 227 << 10, 228 << 10)
    monkeypatch.setattr(decode_attention, "kernel_limits", lambda _: limits)
    forget()
    yield device
    forget()


def request_of(heads: HeadShape, block_tokens: int) -> OpRequest:
    return OpRequest(CPU, torch.bfloat16, heads, False, block_tokens=block_tokens)


def poisoned_cache(lens: list[int], tables: torch.Tensor, block_tokens: int) -> torch.Tensor:
    """Normal numbers where a sequence's tokens are; NaN in all other places."""
    blocks = int(tables.max()) + 1
    generator = torch.Generator().manual_seed(3)
    shape = (blocks, 2, HEADS.num_kv_heads, block_tokens, HEADS.head_dim)
    cache = torch.randn(shape, generator=generator).bfloat16().permute(0, 3, 1, 2, 4)
    cache[0] = torch.nan
    for table, length in zip(tables, lens, strict=True):
        last = -(-length // block_tokens) - 1
        cache[table[last], length - last * block_tokens :] = torch.nan
    return cache


def decoded(lens: list[int], which: list[int], block_tokens: int = 16) -> torch.Tensor:
    """Results of some of these sequences, whose numbers do not depend on which: [n, H * D]."""
    counts = [-(-length // block_tokens) for length in lens]
    ids = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)) + 1
    tables = torch.zeros(len(lens), max(counts), dtype=torch.int32)
    for line, part in zip(tables, torch.split(ids, counts), strict=True):
        line[: len(part)] = part
    cache = poisoned_cache(lens, tables, block_tokens)
    width = HEADS.num_heads + 2 * HEADS.num_kv_heads
    qkv = torch.randn(len(lens), width, HEADS.head_dim, generator=torch.Generator().manual_seed(2))
    contexts = [lens[index] for index in which]
    pieces = torch.tensor(pieces_of(contexts), dtype=torch.int32)
    sequences = pieces[1:, 0] & 0xFFFF
    pieces[1:, 0] = sequences | torch.tensor(which)[sequences].int() << 16
    numbers = torch.zeros(len(which) + 1, dtype=torch.int32)
    tensors = AttentionTensors(
        tables, numbers[1:], numbers[1:], numbers, len(which), 0, pieces=pieces
    )
    scratch = DecodeScratch.make(HEADS, len(which), MAX_CTX, CPU)
    scratch.partials.fill_(torch.nan)
    scratch.sums.fill_(torch.nan)
    out = torch.full((len(which), HEADS.num_heads * HEADS.head_dim), torch.nan).bfloat16()
    decode_attention.decode_attention(qkv[which].bfloat16(), cache, tensors, HEADS, scratch, out)
    assert not scratch.arrivals.any(), "counters are left as they were"
    return out


@pytest.mark.parametrize(
    ("heads", "block_tokens"),
    [
        (HEADS, 32),
        (HeadShape(8, 1, 128), 16),
        (HeadShape(2, 2, 128), 16),
        (HeadShape(6, 1, 256), 16),
        (HeadShape(8, 4, 256), 16),
    ],
)
def test_against_the_reference(host: HostDevice, heads: HeadShape, block_tokens: int) -> None:
    try_kernel(request_of(heads, block_tokens))


@pytest.mark.parametrize("block_tokens", [16, 32])
def test_a_row_does_not_depend_on_its_neighbours(host: HostDevice, block_tokens: int) -> None:
    lens = [1, 700, 17, 256, 300]
    together = decoded(lens, [0, 1, 2, 3, 4], block_tokens)
    assert not together.isnan().any(), "what no sequence owns was read"
    host.backwards = True
    decode_attention._compiled.cache_clear()
    for which in ([1], [4, 0], [3, 2, 1]):
        assert torch.equal(decoded(lens, which, block_tokens), together[which])


def test_few_rows_ask_for_their_values(host: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, asks = [1, 700, 17], "bring_closer("
    host.edit = lambda text: text.replace(asks, f'emulation::fail("asked"), {asks}')
    expected = decoded(lens, [1, 2])
    limits = KernelLimits(132, 227 << 10, 228 << 10)
    monkeypatch.setattr(decode_attention, "kernel_limits", lambda _: limits)
    with pytest.raises(EmulationError, match="asked"):
        decoded(lens, [1, 2])
    host.edit = lambda text: text
    decode_attention._compiled.cache_clear()
    assert torch.equal(decoded(lens, [1, 2]), expected), "what is asked for changes nothing"


@pytest.mark.parametrize(
    ("heads", "whole", "part"),
    [
        (HEADS, "at.group = (at.group + 1) % WARPS", "at.group = 0"),
        (HEADS, "const float share = 1 / total", "const float share = 1"),
        (HeadShape(2, 1, 256), "(2 * number + 1) * D + dim", "2 * number * D + dim"),
    ],
)
def test_a_wrong_kernel_fails_its_trial(
    host: HostDevice, heads: HeadShape, whole: str, part: str
) -> None:
    def edited(text: str) -> str:
        assert text.count(whole) == 1
        return text.replace(whole, part)

    host.edit = edited
    with pytest.raises(TrialError):
        try_kernel(request_of(heads, 16))


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("p.pieces[1 + after / K]", "p.pieces[1 + index / K]"),
        (
            "load_keys(p, next, at, stage, stages[stage])",
            "load_keys(p, task, at, stage, stages[stage])",
        ),
    ],
)
def test_its_trial_takes_several_pieces_on_a_large_gpu(
    host: HostDevice, monkeypatch: pytest.MonkeyPatch, whole: str, part: str
) -> None:
    limits = KernelLimits(132, 227 << 10, 228 << 10)
    monkeypatch.setattr(decode_attention, "kernel_limits", lambda _: limits)
    test_a_wrong_kernel_fails_its_trial(host, HEADS, whole, part)


def test_what_it_is_made_for() -> None:
    assert refusal(HEADS, 16) is None
    assert refusal(HEADS, 24) is not None
    for heads in (HeadShape(18, 2, 64), HeadShape(6, 2, 96)):
        assert refusal(heads, 16) is not None
