from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from luce.errors import ModelFileError, ShuttingDown, WorkerLost, WorkerStartError
from luce.protocol.messages import LoadSpec
from luce.protocol.sampling import SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.clock import FakeClock
from luce.testing.stream_reader import batches
from luce.workers.handle import WorkerState
from luce.workers.spawn import ProcessLauncher
from luce.workers.supervisor import Backoff, Supervisor

pytestmark = pytest.mark.anyio

SPEC = LoadSpec(name="m", path="m.gguf")
PROMPT = pack_prompt([65, 66, 67])
NAMELESS_SIGNAL = 35
"""Of the real-time signals only the first and the last have names."""


async def until(condition, timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def launcher(lines: list[str] | None = None, **script) -> ProcessLauncher:
    arguments = ("-m", "luce.testing.fake_worker", "--script", json.dumps(script))
    write_line = lines.append if lines is not None else lambda line: None
    return ProcessLauncher(sys.executable, arguments, write_line=write_line)


@contextlib.asynccontextmanager
async def supervised(clock=None, lines=None, **script) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(SPEC, launcher(lines, **script), clock)
    supervisor.start()
    try:
        yield supervisor
    finally:
        # A real clock for the end: a FakeClock would never let a pause pass.
        await supervisor.stop(0)
        assert supervisor.handle.state is WorkerState.STOPPED


def is_alive(pid: int) -> bool:
    """Also true of a zombie, so False means reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def submit(supervisor: Supervisor, request_id: str = "r1"):
    return await supervisor.handle.submit(request_id, PROMPT, SamplingParams(max_tokens=8))


def test_backoff_doubles_to_its_cap_and_resets_after_a_healthy_stretch():
    backoff = Backoff(first_s=1, max_s=30, reset_after_s=60)
    assert [backoff.pause_s(0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.pause_s(59.9) == 30
    assert backoff.pause_s(60) == 1
    assert backoff.pause_s(1) == 2


async def test_start_load_serve_stop_leaves_no_process():
    async with supervised() as supervisor:
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
        pid = supervisor.handle.pid
        assert is_alive(pid)
        stream = await submit(supervisor)
        assert [
            t for batch in [b async for b in batches(stream)] for d in batch for t in d.token_ids
        ] == [
            65,
            66,
            67,
        ]
        await supervisor.stop(5)
        assert supervisor.handle.state is WorkerState.STOPPED
        assert not is_alive(pid)
        assert supervisor.failed is None


async def test_a_killed_worker_comes_back_after_the_pause_and_not_before():
    clock = FakeClock()
    supervisor = Supervisor(SPEC, launcher(hold_after=1), clock)
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    first_pid = supervisor.handle.pid
    stream = await submit(supervisor)
    os.kill(first_pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        async for _ in batches(stream):
            pass
    assert supervisor.handle.state is WorkerState.LOST
    await until(lambda: supervisor.pause_s == 1)
    assert not is_alive(first_pid)
    await clock.wait_for_sleepers(1)
    await clock.advance(0.9)
    assert supervisor.num_restarts == 0
    await clock.advance(0.2)
    await until(lambda: supervisor.handle.state is WorkerState.READY)
    assert supervisor.num_restarts == 1
    assert supervisor.handle.pid != first_pid
    assert supervisor.handle.fault is None
    await supervisor.stop(5)


async def test_a_worker_killed_by_a_signal_without_a_name_comes_back(caplog):
    clock = FakeClock()
    supervisor = Supervisor(SPEC, launcher(), clock)
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    with pytest.raises(ValueError, match="not a valid Signals"):
        signal.Signals(NAMELESS_SIGNAL)
    os.kill(supervisor.handle.pid, NAMELESS_SIGNAL)
    await until(lambda: supervisor.pause_s == 1)
    (record,) = [r for r in caplog.records if r.msg == "worker restarts after a pause"]
    assert record.exit == f"killed by signal {NAMELESS_SIGNAL}"
    await clock.wait_for_sleepers(1)
    await clock.advance(1.1)
    await until(lambda: supervisor.handle.state is WorkerState.READY)
    await supervisor.stop(5)


async def test_a_load_that_fails_at_first_start_is_final_and_says_why():
    async with supervised(load_error="ModelFileError", load_message="no tensors.") as supervisor:
        with pytest.raises(ModelFileError, match=r"no tensors\."):
            await asyncio.wait_for(supervisor.wait_first_load(), 60)
        assert isinstance(supervisor.failed, ModelFileError)
        assert supervisor.num_restarts == 0
        with pytest.raises(ModelFileError):
            await supervisor.wait_first_load()


async def test_a_failed_first_start_is_left_to_the_caller_to_tell(caplog):
    async with supervised(load_error="ModelFileError", load_message="no tensors.") as supervisor:
        with pytest.raises(ModelFileError):
            await asyncio.wait_for(supervisor.wait_first_load(), 60)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


async def test_a_worker_lost_after_it_served_is_logged(caplog):
    async with supervised() as supervisor:
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
        os.kill(supervisor.handle.pid, signal.SIGKILL)
        await until(lambda: supervisor.pause_s is not None)
    events = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert events == ["worker lost", "worker restarts after a pause"]


@pytest.mark.parametrize("crash", ["start", "load"])
async def test_a_process_that_dies_before_it_is_ready_is_a_start_error(crash):
    async with supervised(crash=crash) as supervisor:
        with pytest.raises(WorkerStartError, match="SIGKILL"):
            await asyncio.wait_for(supervisor.wait_first_load(), 60)


async def test_an_interpreter_that_does_not_exist_is_a_start_error():
    supervisor = Supervisor(SPEC, ProcessLauncher("/nonexistent/python"))
    supervisor.start()
    with pytest.raises(WorkerStartError, match="cannot be started"):
        await supervisor.wait_first_load()
    assert supervisor.handle.state is WorkerState.LOST
    await supervisor.stop(0)
    assert supervisor.handle.state is WorkerState.STOPPED


async def test_a_reload_that_fails_is_tried_again(tmp_path: Path):
    marker = tmp_path / "crashed"
    clock = FakeClock()
    supervisor = Supervisor(
        SPEC, launcher(crash="tokens", crash_once_file=str(marker)), clock, Backoff(first_s=2)
    )
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    stream = await submit(supervisor)
    with pytest.raises(WorkerLost):
        async for _ in batches(stream):
            pass
    assert marker.exists()
    await until(lambda: supervisor.pause_s == 2)
    await clock.wait_for_sleepers(1)
    await clock.advance(2)
    await until(lambda: supervisor.handle.state is WorkerState.READY)
    assert [d async for d in batches(await submit(supervisor, "r2"))]
    await supervisor.stop(5)


async def test_stop_lets_running_requests_end_within_the_grace():
    async with supervised(token_delay_s=0.05) as supervisor:
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
        stream = await submit(supervisor)
        stopping = asyncio.create_task(supervisor.stop(10))
        read = [batch async for batch in batches(stream)]
        assert read[-1][-1].finish == "stop"
        await asyncio.wait_for(stopping, 60)


async def test_stop_cuts_what_outlives_the_grace():
    async with supervised(hold_after=1) as supervisor:
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
        stream = await submit(supervisor)
        stopping = asyncio.create_task(supervisor.stop(0.05))
        with pytest.raises(ShuttingDown):
            async for _ in batches(stream):
                pass
        await asyncio.wait_for(stopping, 60)


async def test_a_worker_deaf_to_shutdown_and_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr("luce.workers.supervisor.SHUTDOWN_MARGIN_S", 0.05)
    monkeypatch.setattr("luce.workers.supervisor.TERMINATE_PATIENCE_S", 0.05)
    async with supervised(ignore_shutdown=True) as supervisor:
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
        pid = supervisor.handle.pid
        await asyncio.wait_for(supervisor.stop(0), 60)
        assert not is_alive(pid)


async def test_a_second_stop_cuts_the_first_one_short():
    async with supervised(hold_after=0) as supervisor:
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
        await submit(supervisor)
        patient = asyncio.create_task(supervisor.stop(600))
        await asyncio.sleep(0.05)
        assert not patient.done()
        await asyncio.wait_for(supervisor.stop(0), 60)
        await asyncio.wait_for(patient, 60)


async def test_stop_while_it_starts_ends_and_reports_no_load():
    async with supervised(load_s=0.3) as supervisor:
        waiting = asyncio.create_task(supervisor.wait_first_load())
        await asyncio.sleep(0)
        await asyncio.wait_for(supervisor.stop(5), 60)
        with pytest.raises(WorkerStartError, match="stopped before"):
            await waiting


async def test_a_worker_that_is_not_wanted_any_more_has_nothing_to_warn_of():
    lines: list[str] = []
    supervisor = Supervisor(SPEC, ProcessLauncher(write_line=lines.append))
    supervisor.start()
    await asyncio.sleep(0)
    await asyncio.wait_for(supervisor.stop(5), 60)
    assert lines == []


async def test_stop_in_a_pause_does_not_wait_it_out():
    clock = FakeClock()
    supervisor = Supervisor(SPEC, launcher(), clock)
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    os.kill(supervisor.handle.pid, signal.SIGKILL)
    await until(lambda: supervisor.pause_s is not None)
    await asyncio.wait_for(supervisor.stop(5), 60)
    assert supervisor.num_restarts == 0
    assert supervisor.handle.state is WorkerState.STOPPED


async def test_cancelling_the_supervision_kills_the_process():
    supervisor = Supervisor(SPEC, launcher())
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    pid = supervisor.handle.pid
    supervisor._task.cancel()
    await until(lambda: not is_alive(pid))
    with pytest.raises(asyncio.CancelledError):
        await supervisor._task


async def test_a_worker_that_breaks_the_protocol_is_replaced():
    clock = FakeClock()
    supervisor = Supervisor(SPEC, launcher(malformed="garbage"), clock)
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    pid = supervisor.handle.pid
    with pytest.raises(WorkerLost):
        await submit(supervisor)
    await until(lambda: not is_alive(pid))
    await supervisor.stop(0)


async def test_it_cannot_be_started_twice():
    async with supervised() as supervisor:
        with pytest.raises(RuntimeError, match="supervised already"):
            supervisor.start()
