"""Workers that are evicted, put down and brought up again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from luce.errors import InternalError, ModelFileError, WorkerLost, WorkerStartError
from luce.protocol import messages as wire
from luce.testing.fake_script import FakeScript
from luce.testing.fake_worker import FakeWorker
from luce.testing.thread_launcher import ThreadLauncher
from luce.workers.handle import WorkerState
from luce.workers.spawn import WorkerProcess
from luce.workers.supervisor import Backoff, Supervisor

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def up(
    script: FakeScript | None = None,
) -> AsyncIterator[tuple[Supervisor, FakeWorker, ThreadLauncher]]:
    with FakeWorker(script) as worker:
        launcher = ThreadLauncher({"m": worker})
        spec = wire.LoadSpec(name="m", path="m.gguf")
        supervisor = Supervisor(spec, launcher, backoff=Backoff(0.01, 0.02))
        try:
            yield supervisor, worker, launcher
        finally:
            await supervisor.stop(0)
            assert supervisor.handle.state is WorkerState.STOPPED


async def test_evict_and_reinstate_report_what_happened() -> None:
    async with up(FakeScript(weights_bytes=70, snapshots_lost=2)) as (supervisor, worker, _):
        supervisor.start()
        await supervisor.wait_first_load()
        done = await supervisor.handle.control("evict", "host")
        assert (done.host_bytes, done.retained_bytes, done.snapshots_lost) == (70, 0, 2)
        assert supervisor.handle.state is WorkerState.EVICTED
        done = await supervisor.handle.control("evict", "warm")
        assert (done.host_bytes, done.retained_bytes) == (0, 70)
        await supervisor.handle.control("reinstate")
        assert supervisor.handle.state is WorkerState.READY
        asked = [(t.op, t.level) for t in worker.transitions]
        assert asked == [("evict", "host"), ("evict", "warm"), ("reinstate", None)]


async def test_a_refused_eviction_leaves_it_ready() -> None:
    async with up(FakeScript(refuse_evict=1)) as (supervisor, _, _):
        supervisor.start()
        await supervisor.wait_first_load()
        with pytest.raises(InternalError, match="stays"):
            await supervisor.handle.control("evict", "cold")
        assert supervisor.handle.state is WorkerState.READY


async def test_a_failed_reinstatement_leaves_it_evicted() -> None:
    async with up(FakeScript(fail_reinstate=1)) as (supervisor, _, _):
        supervisor.start()
        await supervisor.wait_first_load()
        await supervisor.handle.control("evict", "cold")
        with pytest.raises(InternalError, match="come back"):
            await supervisor.handle.control("reinstate")
        assert supervisor.handle.state is WorkerState.EVICTED


async def test_a_worker_at_rest_is_not_started_again() -> None:
    async with up() as (supervisor, worker, launcher):
        supervisor.start()
        await supervisor.wait_first_load()
        supervisor.rest()
        worker.crash()
        await until(lambda: supervisor.handle.state is WorkerState.LOST)
        await asyncio.sleep(0.1)
        assert launcher.num_launched["m"] == 1
        await supervisor.bring_up()
        assert supervisor.handle.state is WorkerState.READY
        worker.crash()
        await until(lambda: launcher.num_launched["m"] == 3)  # Up again, it is kept up.


async def test_a_worker_can_begin_with_being_asked_for() -> None:
    async with up() as (supervisor, _, launcher):
        await supervisor.bring_up()
        assert launcher.num_launched["m"] == 1


async def test_bringing_up_is_one_try() -> None:
    script = FakeScript(load_error="ModelFileError", load_message="cut off")
    async with up(script) as (supervisor, worker, launcher):
        with pytest.raises(ModelFileError, match="cut off"):
            await supervisor.bring_up()
        await asyncio.sleep(0.1)
        assert launcher.num_launched["m"] == 1
        assert supervisor.failed is None
        launcher.failing["m"] = "no descriptors"
        with pytest.raises(WorkerStartError, match="no descriptors"):
            await supervisor.bring_up()
        launcher.failing.clear()
        worker.script = FakeScript()
        await supervisor.bring_up()
        assert supervisor.handle.state is WorkerState.READY


async def test_put_down_reaps_and_stays_down() -> None:
    async with up() as (supervisor, _, launcher):
        await supervisor.put_down()  # Nothing was up.
        await supervisor.bring_up()
        await supervisor.put_down()
        assert supervisor.handle.state is WorkerState.STOPPED
        await asyncio.sleep(0.05)
        assert launcher.num_launched["m"] == 1
        await supervisor.bring_up()
        assert launcher.num_launched["m"] == 2


async def test_put_down_ends_a_load(tmp_path: Path) -> None:
    async with up(FakeScript(load_until_file=str(tmp_path / "never"))) as (supervisor, _, _):
        bringing = asyncio.create_task(supervisor.bring_up())
        await until(lambda: supervisor.handle.state is WorkerState.LOADING)
        await asyncio.wait_for(supervisor.put_down(), 60)
        with pytest.raises(WorkerStartError):
            await bringing


async def test_one_that_ends_says_nothing_of_the_next(tmp_path: Path) -> None:
    async with up(FakeScript(load_until_file=str(tmp_path / "never"))) as (supervisor, worker, _):
        first = asyncio.create_task(supervisor.bring_up())
        await until(lambda: supervisor.handle.state is WorkerState.LOADING)
        first.cancel()
        ending = asyncio.create_task(supervisor.put_down())
        await until(lambda: supervisor.handle.state is not WorkerState.LOADING)
        worker.script = FakeScript()
        await supervisor.bring_up()
        assert supervisor.handle.state is WorkerState.READY
        await ending


async def test_put_down_ends_a_process_that_is_just_being_started() -> None:
    async with up() as (supervisor, _, launcher):
        may_go, launch = asyncio.Event(), launcher.launch

        async def held(spec: wire.LoadSpec) -> WorkerProcess:
            await may_go.wait()
            return await launch(spec)

        launcher.launch = held  # type: ignore[method-assign]
        first = asyncio.create_task(supervisor.bring_up())
        await asyncio.sleep(0)
        first.cancel()
        ending = asyncio.create_task(supervisor.put_down())
        await asyncio.sleep(0.05)
        may_go.set()
        await ending
        assert supervisor.handle.ready is None
        await supervisor.bring_up()
        assert supervisor.handle.state is WorkerState.READY
        assert launcher.num_launched["m"] == 2


async def test_stopping_ends_who_brings_it_up(tmp_path: Path) -> None:
    async with up(FakeScript(load_until_file=str(tmp_path / "never"))) as (supervisor, _, _):
        bringing = asyncio.create_task(supervisor.bring_up())
        await until(lambda: supervisor.handle.state is WorkerState.LOADING)
        await supervisor.stop(0)
        with pytest.raises(WorkerStartError):
            await bringing


async def test_a_worker_that_dies_fails_its_operation() -> None:
    async with up(FakeScript(hold_controls=["evict"])) as (supervisor, worker, _):
        supervisor.start()
        await supervisor.wait_first_load()
        supervisor.rest()
        evicting = asyncio.create_task(supervisor.handle.control("evict", "cold"))
        await until(lambda: len(worker.transitions) == 1)
        worker.crash()
        with pytest.raises(WorkerLost):
            await evicting


async def test_a32_every_further_process_gets_the_first_ones_sizes() -> None:
    async with up(FakeScript(max_ctx=77, kv_pool_tokens=640)) as (supervisor, worker, _):
        supervisor.start()
        await supervisor.wait_first_load()
        supervisor.handle.freeze_layout()
        await supervisor.put_down()
        await supervisor.bring_up()
        specs = [message.spec for message in worker.received if isinstance(message, wire.Load)]
        assert [(spec.max_ctx, spec.kv_pool_tokens) for spec in specs] == [(None, None), (77, 640)]
