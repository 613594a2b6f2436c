"""Two models take turns on one GPU; `python -m bench.engine.swap --gpu` prints it.

What is measured: the rate of a plain copy from pinned memory, a switch (one model leaves, the
other comes in) and its parts, what of a conversation is computed again behind it, how many steps
were captured again, memory that is free each time both are out, and a return from files in the
page cache. The same with steps captured anew (as where the driver does not serve) stands below it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from bench.engine.end_to_end import config_of, write_model
from bench.engine.shapes import QWEN3, RandomParameters, hparams_of
from bench.engine.swap import Served, conversation, seconds

from luce.engine.device import (
    Device,
    dtype_name,
    free_bytes,
    held_bytes,
    host_buffer,
    open_device,
    release_all,
    synchronize,
)
from luce.engine.device_executor import DeviceExecutor, _CapturedStep
from luce.engine.engine import Blueprint, Engine
from luce.engine.options import EngineOptions
from luce.kv.spec import blocks_for
from luce.protocol.messages import LoadSpec
from luce.sizing.model_sizes import Sizing
from luce.worker.load import _scheduler

_MIB = 1 << 20
_PLAIN_BYTES = 1 << 30
_HOST_BYTES = 1 << 31
"""For prefixes of each model."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured.

    Attributes:
        size: a key of `QWEN3`.
        device: where.
        turns: switches with steps kept.
        folder: where the files of the part about the page cache go; None: a temporary folder.
        rows: of each model.
        max_ctx: likewise.
        pool_tokens: likewise.
        chunk: likewise.
        dtype: likewise.
        conversation: tokens whose keys and values are to outlive a switch.
    """

    size: str = "8B"
    device: str = "cuda:0"
    turns: int = 10
    folder: Path | None = None
    rows: int = 32
    max_ctx: int = 8192
    pool_tokens: int = 65536
    chunk: int = 2048
    dtype: torch.dtype = torch.bfloat16
    conversation: int = 2000


@dataclass(slots=True)
class Captures:
    """How many steps were captured."""

    count: int = 0


@contextmanager
def counted_captures() -> Iterator[Captures]:
    """Count them inside."""
    captures, original = Captures(), DeviceExecutor._capture

    def counted(executor: DeviceExecutor, size: int, pool: object) -> _CapturedStep:
        captures.count += 1
        return original(executor, size, pool)

    DeviceExecutor._capture = counted  # type: ignore[method-assign, assignment]
    try:
        yield captures
    finally:
        DeviceExecutor._capture = original  # type: ignore[method-assign]


def pinned_rate(device: Device) -> float:
    """Bytes a second of a plain copy from pinned memory to the device, the best of six."""
    host = host_buffer(_PLAIN_BYTES, device)
    there = torch.empty_like(host, device=device.torch)

    def copy() -> None:
        there.copy_(host, non_blocking=True)
        synchronize(device)

    return host.nbytes / min(seconds(copy) for _ in range(6))


def random_model(setting: Setting, seed: int, *, takes_turns: bool) -> Engine:
    """A model of random weights that is ready to serve."""
    device = open_device(setting.device)
    options = EngineOptions(
        path=Path(f"random-{seed}"),
        device=setting.device,
        max_concurrency=setting.rows,
        max_ctx=setting.max_ctx,
        kv_pool_tokens=setting.pool_tokens,
        chunk=setting.chunk,
        takes_turns=takes_turns,
    )
    blocks = blocks_for(setting.pool_tokens, options.block_tokens)
    sizing = Sizing(setting.max_ctx, blocks, weights_bytes=0, kv_bytes=0, scratch_bytes=0)
    blueprint = Blueprint("qwen3", hparams_of(setting.size), options, device, setting.dtype, sizing)
    parameters = RandomParameters(setting.dtype, device.torch, seed)
    with torch.inference_mode():
        engine = Engine(blueprint, parameters, lambda *_: None)
    engine.warm_up()
    return engine


class Guest(Served):
    """A model that has answered a conversation, and knows what it says to it again."""

    def __init__(self, engine: Engine, setting: Setting) -> None:
        info = engine.resolved
        spec = LoadSpec(name="m", path=str(id(engine)), chunk=setting.chunk)
        super().__init__(engine, _scheduler(spec, info, engine.host_blocks(_HOST_BYTES)))
        self.model = engine
        self._prompt = conversation(info.vocab_size, 5, setting.conversation)
        self.answer(self._prompt)
        self._expected = self.answer(self._prompt)[0]

    @property
    def has_addresses(self) -> bool:
        """Whether its memory comes back to the same ones."""
        runner = self.model._runner
        return self.model._weights.placing_driver is not None and runner.memory is not None

    def check(self) -> tuple[bool, float, float]:
        """Whether it says the same, the share of the conversation computed again, seconds."""
        began = time.perf_counter()
        text, cached = self.answer(self._prompt)
        taken_s = time.perf_counter() - began
        return text == self._expected, 1 - cached / len(self._prompt), taken_s


def take_turns(setting: Setting, rate: float, turns: int, *, keeps_steps: bool) -> None:
    """Load two models and switch between them; prints a line each time, and a summary."""
    device = open_device(setting.device)
    with counted_captures() as captures:
        guests = [_first_time(setting, seed, takes_turns=keeps_steps) for seed in range(2)]
        guests[0].reinstate()
        before, others = captures.count, 0
        switches, shares, free = [], [], []
        for turn in range(turns):
            out, back = guests[turn % 2], guests[(turn + 1) % 2]
            out_s = seconds(partial(out.evict, "host"))
            free.append(free_bytes(device))
            back_s = seconds(back.reinstate)
            is_same, again, answer_s = back.check()
            others += not is_same
            weights = back.model.resolved.weights_bytes
            switches.append(out_s + back_s)
            shares.append(weights / back_s / rate)
            print(
                f"  out {out_s:.3f} s, back {back_s:.3f} s = {weights / back_s / 1e9:.1f} GB/s "
                f"({shares[-1]:.0%} of a plain copy), a switch {switches[-1]:.3f} s; "
                f"{again:.1%} of {setting.conversation} tokens computed again, 8 tokens behind "
                f"them after {answer_s:.3f} s",
                flush=True,
            )
        anew = captures.count - before
    print(
        f"  a switch: best {min(switches):.3f} s, median {statistics.median(switches):.3f} s, "
        f"worst {max(switches):.3f} s (limit 0.7); of a plain copy: median "
        f"{statistics.median(shares):.0%} (limit 80 %); steps captured again: {anew}; free "
        f"memory after {turns} swaps: {(free[-1] - free[0]) / _MIB:+.1f} MiB of the first "
        f"(limit 64); answers that were others than before: {others}",
        flush=True,
    )
    for guest in guests:
        guest.model.close()
    release_all(device)


def _first_time(setting: Setting, seed: int, *, takes_turns: bool) -> Guest:
    """A model that has answered and left."""
    engine = random_model(setting, seed, takes_turns=takes_turns)
    guest = Guest(engine, setting)
    where = "addresses of its own" if guest.has_addresses else "PyTorch has its memory"
    began = time.perf_counter()
    kept = guest.evict("host")
    print(
        f"  model {seed}: weights {engine.resolved.weights_bytes / 1e9:.1f} GB, cache "
        f"{engine.resolved.kv_bytes / 1e9:.1f} GB, {where}; left for the first time in "
        f"{time.perf_counter() - began:.2f} s (pinned memory is made), "
        f"{kept.device_bytes / _MIB:.0f} MiB stay",
        flush=True,
    )
    return guest


def from_page_cache(setting: Setting) -> None:
    """A model of files leaves for good and comes back from them."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as name:
        folder = Path(name)
        device = open_device(setting.device)
        size = write_model(folder, config_of(setting.size, None), str(device.torch))
        options = EngineOptions(
            path=folder,
            device=setting.device,
            dtype=dtype_name(setting.dtype),
            max_concurrency=setting.rows,
            max_ctx=setting.max_ctx,
            kv_pool_tokens=setting.pool_tokens,
            chunk=setting.chunk,
            takes_turns=True,
        )
        engine = Engine.load(options, lambda *_: None)
        engine.warm_up()
        guest = Guest(engine, setting)
        for _ in range(2):
            guest.evict("cold")
            weights_s = seconds(partial(_read_again, engine))
            rest_s = seconds(guest.reinstate)
            is_same, again, _ = guest.check()
            print(
                f"from the page cache: {size / 1e9:.1f} GB in {weights_s:.3f} s = "
                f"{size / weights_s / 1e9:.1f} GB/s (limit 3); cache and captures {rest_s:.3f} s; "
                f"{again:.1%} of the conversation computed again; "
                f"{'the same answer' if is_same else 'ANOTHER ANSWER'}",
                flush=True,
            )
        engine.close()


def _read_again(engine: Engine) -> None:
    with engine._weights.coming_back(engine._blueprint):
        pass


def gpu(setting: Setting) -> None:
    """All of it."""
    device = open_device(setting.device)
    assert setting.size in QWEN3, f"one of {', '.join(QWEN3)}"
    rate = pinned_rate(device)
    print(f"a plain copy from pinned memory: {rate / 1e9:.1f} GB/s", flush=True)
    print("captured steps and addresses are kept:", flush=True)
    take_turns(setting, rate, setting.turns, keeps_steps=True)
    print("captured anew each time:", flush=True)
    take_turns(setting, rate, min(2, setting.turns), keeps_steps=False)
    from_page_cache(setting)
    print(f"held at the end: {held_bytes(device) / _MIB:.0f} MiB", flush=True)
