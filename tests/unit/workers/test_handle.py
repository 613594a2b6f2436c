from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from luce.errors import (
    ContextLengthExceeded,
    DeviceOutOfMemory,
    InternalError,
    InvalidRequest,
    ModelFileError,
    ModelLoading,
    ModelUnavailable,
    ShuttingDown,
    WorkerLost,
    WorkerStartError,
)
from luce.protocol import messages as wire
from luce.protocol.frames import (
    FrameGarbage,
    FrameTooLarge,
    FrameTruncated,
    read_batches,
    worker_decoder,
)
from luce.protocol.sampling import SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.fake_script import FakeScript, PromptReply
from luce.testing.fake_worker import FakeWorker
from luce.testing.stream_reader import batches
from luce.workers.handle import WorkerHandle, WorkerRefusal, WorkerState
from luce.workers.stream import WorkerStream

pytestmark = pytest.mark.anyio

SPEC = wire.LoadSpec(name="m", path="m.gguf")
SAMPLING = SamplingParams(max_tokens=64)
PROMPT = [104, 105, 33]


async def until(condition, timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def connected(script: FakeScript | None = None, wait: bool = True) -> AsyncIterator:
    handle = WorkerHandle(SPEC)
    with FakeWorker(script) as worker:
        await handle.connect(worker.connect())
        if wait:
            await until(lambda: handle.state is WorkerState.READY)
        try:
            yield handle, worker
        finally:
            handle.disconnect(WorkerLost("the test is over"))
            await handle.wait_down()


async def submit(handle: WorkerHandle, request_id: str = "r1", prompt=PROMPT) -> WorkerStream:
    return await handle.submit(request_id, pack_prompt(prompt), SAMPLING)


async def read(stream: WorkerStream) -> tuple[list[int], list[str]]:
    tokens: list[int] = []
    finishes: list[str] = []
    async for batch in batches(stream):
        for delta in batch:
            tokens += delta.token_ids
            finishes += [delta.finish] if delta.finish else []
    return tokens, finishes


async def test_ready_carries_what_the_worker_resolved():
    async with connected(FakeScript(max_ctx=77)) as (handle, worker):
        assert handle.limits == worker.script.limits
        assert handle.limits.max_ctx == 77
        assert handle.ready.architecture == "fake"
        assert handle.pid is not None
        assert handle.progress is None
        assert worker.received == [wire.Load(SPEC)]


async def test_a_stream_gives_the_tokens_and_ends_once():
    async with connected(FakeScript(cached_tokens=2)) as (handle, _):
        stream = await submit(handle)
        assert stream.cached_tokens == 2
        assert await read(stream) == (PROMPT, ["stop"])
        assert await stream.next() == []
        retired = await stream.retired
        assert retired.usage == wire.Usage(prompt_tokens=3, cached_tokens=2, completion_tokens=3)
        assert handle.in_flight == 0


async def test_next_gives_everything_that_has_arrived():
    async with connected() as (handle, _):
        stream = await submit(handle)
        await stream.retired
        batch = await stream.next()
        assert [d.token_ids for d in batch] == [[104], [105], [33]]
        assert [d.finish for d in batch] == [None, None, "stop"]


async def test_parallel_streams_do_not_mix():
    async with connected(FakeScript(max_concurrency=8, hold_after=1)) as (handle, worker):
        prompts = [[65 + i] * (i + 1) for i in range(8)]
        streams = await asyncio.gather(
            *(submit(handle, f"r{i}", prompt) for i, prompt in enumerate(prompts))
        )
        worker.release()
        outputs = await asyncio.gather(*(read(stream) for stream in streams))
        assert [tokens for tokens, _ in outputs] == prompts
        assert worker.max_in_flight == 8


async def test_a_busy_worker_refuses_and_takes_the_request_later():
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with connected(script) as (handle, worker):
        first = await submit(handle, "r1")
        with pytest.raises(WorkerRefusal) as refusal:
            await submit(handle, "r2")
        assert (refusal.value.reason, refusal.value.error) == ("capacity", None)
        worker.release()
        await first.retired
        second = await submit(handle, "r2")
        worker.release()
        assert await read(second) == (PROMPT, ["stop"])


async def test_the_pool_refuses_by_blocks_not_only_by_rows():
    # 4 blocks of 16: a prompt of 17 tokens needs two and one more.
    script = FakeScript(kv_pool_tokens=64, hold_after=0)
    async with connected(script) as (handle, _):
        await submit(handle, "r1", [65] * 17)
        with pytest.raises(WorkerRefusal, match="capacity"):
            await submit(handle, "r2", [65] * 17)


async def test_a_prompt_that_never_fits_is_a_context_error():
    async with connected(FakeScript(max_ctx=16)) as (handle, _):
        with pytest.raises(WorkerRefusal) as refusal:
            await submit(handle, prompt=[65] * 16)
        assert refusal.value.reason == "never_fits"
        assert isinstance(refusal.value.error, ContextLengthExceeded)
        assert "16" in str(refusal.value.error)


async def test_ids_outside_the_vocabulary_are_an_invalid_request():
    async with connected() as (handle, _):
        with pytest.raises(WorkerRefusal) as refusal:
            await submit(handle, prompt=[300])
        assert refusal.value.reason == "failed"
        assert isinstance(refusal.value.error, InvalidRequest)


async def test_a_failed_refusal_without_an_api_error_is_internal():
    script = FakeScript(refuse_next=1, refuse_reason="failed", refuse_error="ModelFileError")
    async with connected(script) as (handle, _):
        with pytest.raises(WorkerRefusal) as refusal:
            await submit(handle)
        assert isinstance(refusal.value.error, InternalError)


async def test_a_prompt_over_the_frame_cap_is_refused_here():
    async with connected() as (handle, _):
        with pytest.raises(WorkerRefusal) as refusal:
            await handle.submit("r1", bytes(17 * 2**20), SAMPLING)
        assert isinstance(refusal.value.error, ContextLengthExceeded)
        assert handle.in_flight == 0
        assert await read(await submit(handle, "r2")) == (PROMPT, ["stop"])


async def test_sampling_the_wire_cannot_carry_is_refused_here():
    async with connected() as (handle, _):
        with pytest.raises(WorkerRefusal) as refusal:
            await handle.submit("r1", pack_prompt(PROMPT), SamplingParams(max_tokens=2**70))
        assert isinstance(refusal.value.error, InternalError)
        assert handle.in_flight == 0


async def test_an_open_request_id_cannot_be_used_twice():
    async with connected(FakeScript(hold_after=0)) as (handle, _):
        await submit(handle, "r1")
        with pytest.raises(ValueError, match="r1 is open"):
            await submit(handle, "r1")


async def test_cancel_ends_the_stream_and_frees_the_worker():
    async with connected(FakeScript(hold_after=1)) as (handle, worker):
        stream = await submit(handle)
        assert (await stream.next())[0].token_ids == [104]
        stream.cancel("stop_string")
        stream.cancel("stop_string")
        assert await read(stream) == ([], ["cancelled"])
        assert (await stream.retired).finish == "cancelled"
        assert worker.in_flight == 0
        cancels = [m for m in worker.received if isinstance(m, wire.Cancel)]
        assert cancels == [wire.Cancel("r1", "stop_string")]


async def test_cancel_after_the_end_sends_nothing():
    async with connected() as (handle, worker):
        stream = await submit(handle)
        await stream.retired
        stream.cancel("client_gone")
        await submit(handle, "r2")
        assert not any(isinstance(m, wire.Cancel) for m in worker.received)


async def test_a_failing_request_gets_its_tokens_then_its_error_each_time():
    async with connected(FakeScript(fail_error="DeviceOutOfMemory")) as (handle, _):
        stream = await submit(handle)
        tokens: list[int] = []
        with pytest.raises(DeviceOutOfMemory):
            async for batch in batches(stream):
                tokens += [token for delta in batch for token in delta.token_ids]
        assert tokens == PROMPT
        with pytest.raises(DeviceOutOfMemory):
            await stream.next()
        assert (await stream.retired).error == "DeviceOutOfMemory"


async def test_a_submitter_that_leaves_cancels_and_the_handle_keeps_track():
    async with connected(FakeScript(hold_after=0)) as (handle, worker):
        task = asyncio.create_task(submit(handle))
        await asyncio.sleep(0)
        task.cancel()
        assert handle.in_flight == 1
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(handle.settled("r1"), 60)
        assert handle.in_flight == 0
        assert [type(m) for m in worker.received] == [wire.Load, wire.Submit, wire.Cancel]


async def test_a_submitter_that_leaves_before_a_refusal_is_settled_by_it():
    async with connected(FakeScript(refuse_next=1)) as (handle, _):
        task = asyncio.create_task(submit(handle))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait_for(handle.settled("r1"), 60)
        assert handle.in_flight == 0


async def test_a_worker_that_reads_nothing_keeps_the_submitter_cancellable():
    async with connected(FakeScript(stall_reading=True)) as (handle, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(submit(handle), 0.05)
        # Until the worker has answered, the request that was left is still its.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.settled("r1"), 0.05)
        assert handle.in_flight == 1


async def test_a_slow_reader_is_cancelled_and_blocks_nobody(monkeypatch):
    monkeypatch.setattr("luce.workers.stream.MAX_BUFFERED_TOKENS", 8)
    short = PromptReply(token=1, reply=[66] * 8)  # As much as may come while nobody reads.
    script = FakeScript(reply=[65] * 64, token_delay_s=0.001, prompt_replies=[short])
    async with connected(script) as (handle, worker):
        slow = await submit(handle, "slow")
        for number in range(8):
            fast = await submit(handle, f"fast {number}", [1])
            assert await read(fast) == ([66] * 8, ["stop"])
        assert await read(slow) == ([65] * 8, ["cancelled"])
        await until(lambda: wire.Cancel("slow", "slow_reader") in worker.received)
        await slow.retired


@pytest.mark.parametrize("crash", ["submit", "admitted", "tokens", "drain"])
async def test_a_crash_ends_each_open_request_once(crash):
    script = FakeScript(crash=crash, crash_tokens=2, hold_after=2 if crash == "drain" else None)
    async with connected(script) as (handle, _):
        if crash == "submit":
            with pytest.raises(WorkerLost):
                await submit(handle)
        else:
            stream = await submit(handle)
            if crash == "drain":
                with pytest.raises(WorkerLost):
                    await handle.control("drain")
            with pytest.raises(WorkerLost):
                await read(stream)
            retired = await stream.retired
            assert (retired.finish, retired.error) == ("error", "WorkerLost")
            assert retired.usage.prompt_tokens == 3
        assert handle.state is WorkerState.LOST
        assert handle.in_flight == 0
        assert isinstance(handle.fault, WorkerLost)
        with pytest.raises(ModelUnavailable):
            await submit(handle, "r2")


async def test_a_crash_fails_submitters_streams_and_controls_together():
    script = FakeScript(stall_reading=True)
    async with connected(script) as (handle, worker):
        waiting = [asyncio.create_task(submit(handle, f"r{i}")) for i in range(3)]
        control = asyncio.create_task(handle.control("check"))
        await asyncio.sleep(0.01)
        worker.crash()
        outcomes = await asyncio.gather(*waiting, control, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [WorkerLost] * 4
        assert len({id(outcome) for outcome in outcomes[:3]}) == 3
        assert "held this request" in str(outcomes[0])
        assert str(outcomes[3]) == "Model m stopped on the way."


async def test_a_finished_stream_is_not_touched_by_a_later_crash():
    async with connected() as (handle, worker):
        stream = await submit(handle)
        await stream.retired
        worker.crash()
        await handle.wait_down()
        assert await read(stream) == (PROMPT, ["stop"])


@pytest.mark.parametrize(
    ("malformed", "fault"),
    [("garbage", FrameGarbage), ("too_large", FrameTooLarge), ("truncated", FrameTruncated)],
)
async def test_a_malformed_frame_is_a_death(malformed, fault):
    async with connected(FakeScript(malformed=malformed)) as (handle, _):
        with pytest.raises(WorkerLost):
            await submit(handle)
        assert handle.state is WorkerState.LOST
        assert isinstance(handle.fault, fault)


async def test_another_protocol_version_is_a_start_error():
    async with connected(FakeScript(malformed="version"), wait=False) as (handle, _):
        await handle.wait_down()
        assert handle.state is WorkerState.LOST
        assert isinstance(handle.fault, WorkerStartError)
        assert str(wire.PROTOCOL_VERSION) in str(handle.fault)


async def test_a_failed_load_keeps_its_reason():
    script = FakeScript(load_error="ModelFileError", load_message="tensor x is missing.")
    async with connected(script, wait=False) as (handle, _):
        await handle.wait_down()
        assert isinstance(handle.fault, ModelFileError)
        assert str(handle.fault) == "tensor x is missing."


async def test_loading_says_so_and_shows_progress(tmp_path: Path):
    loaded = tmp_path / "loaded"
    async with connected(FakeScript(load_until_file=str(loaded)), wait=False) as (handle, _):
        with pytest.raises(ModelLoading):
            await submit(handle)
        await until(lambda: handle.progress is not None)
        assert handle.state is WorkerState.LOADING
        assert handle.progress.total_bytes == 100
        with pytest.raises(ModelLoading):
            await submit(handle)
        loaded.touch()
        await until(lambda: handle.state is WorkerState.READY)


async def test_drain_lets_running_requests_end_and_takes_no_new_ones():
    async with connected(FakeScript(hold_after=1)) as (handle, worker):
        stream = await submit(handle)
        await handle.control("drain")
        assert handle.state is WorkerState.DRAINING
        with pytest.raises(WorkerRefusal) as refusal:
            await submit(handle, "r2")
        assert refusal.value.reason == "draining"
        worker.release()
        assert await read(stream) == (PROMPT, ["stop"])


async def test_shutdown_ends_stopped_and_cuts_at_the_end_of_the_grace():
    async with connected(FakeScript(hold_after=1)) as (handle, _):
        stream = await submit(handle)
        handle.shutdown(0.02)
        assert handle.state is WorkerState.DRAINING
        with pytest.raises(ShuttingDown):
            await read(stream)
        await handle.wait_down()
        assert handle.state is WorkerState.STOPPED
        assert handle.fault is None


async def test_shutdown_while_loading_never_becomes_ready(tmp_path: Path):
    loaded = tmp_path / "loaded"
    async with connected(FakeScript(load_until_file=str(loaded)), wait=False) as (handle, _):
        await until(lambda: handle.state is WorkerState.LOADING)
        handle.shutdown(1.0)
        seen: list[WorkerState] = []
        handle.on_change.append(lambda: seen.append(handle.state))
        loaded.touch()
        await handle.wait_down()
        assert WorkerState.READY not in seen
        assert handle.state is WorkerState.STOPPED


async def test_a_worker_that_dies_in_its_shutdown_says_shutting_down():
    async with connected(FakeScript(hold_after=1)) as (handle, worker):
        stream = await submit(handle)
        handle.shutdown(5.0)
        worker.crash()
        with pytest.raises(ShuttingDown):
            await read(stream)
        assert handle.state is WorkerState.STOPPED


async def test_on_change_tells_of_states_admissions_and_retirements():
    async with connected(FakeScript(hold_after=1), wait=False) as (handle, worker):
        seen: list[tuple[WorkerState, int]] = []
        handle.on_change.append(lambda: seen.append((handle.state, handle.in_flight)))
        await until(lambda: handle.state is WorkerState.READY)
        stream = await submit(handle)
        assert (WorkerState.READY, 1) in seen
        worker.release()
        await stream.retired
        assert seen[-1] == (WorkerState.READY, 0)
        await until(lambda: handle.stats.running == 0 and handle.stats.steps > 0)
        assert handle.stats.free_blocks == handle.stats.total_blocks


async def test_the_same_handle_serves_the_next_process():
    async with connected(FakeScript(crash="tokens", max_ctx=50)) as (handle, worker):
        with pytest.raises(WorkerLost):
            await read(await submit(handle))
        worker.script = FakeScript(max_ctx=60)
        assert handle.limits.max_ctx == 50
        await handle.connect(worker.connect())
        await until(lambda: handle.state is WorkerState.READY)
        assert handle.limits.max_ctx == 60
        assert handle.fault is None
        assert await read(await submit(handle)) == (PROMPT, ["stop"])


async def test_a_second_process_cannot_be_connected_beside_the_first():
    async with connected() as (handle, _):
        with FakeWorker() as other, other.connect() as sock:
            with pytest.raises(RuntimeError, match="connected already"):
                await handle.connect(sock)


async def test_a_worker_is_told_before_it_is_disconnected():
    handle = WorkerHandle(SPEC)
    near, far = socket.socketpair()
    with far:
        await handle.connect(near)
        handle.disconnect(WorkerLost("the server stops"))
        await handle.wait_down()
        told = [each for batch in read_batches(far, worker_decoder()) for each in batch]
    assert told == [wire.Load(SPEC), wire.Shutdown(0)]


async def test_control_reports_through_its_own_answer():
    async with connected() as (handle, _):
        await handle.control("check")
        handle.disconnect(WorkerLost("gone"))
        await handle.wait_down()
        with pytest.raises(ModelUnavailable):
            await handle.control("check")
