"""Real worker processes, killed and orphaned in every state."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.errors import ModelFileError, StartupError, WorkerLost
from luce.protocol.messages import LoadSpec
from luce.protocol.sampling import SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.stream_reader import batches
from luce.testing.tiny_models import tiny_llama
from luce.workers.handle import WorkerHandle, WorkerState
from luce.workers.spawn import ProcessLauncher
from luce.workers.stream import WorkerStream
from luce.workers.supervisor import Backoff, Supervisor

pytestmark = pytest.mark.anyio

QUICK = Backoff(first_s=0.05, max_s=0.05)
PROMPT = list(range(5, 25))
LOAD_TIMEOUT_S = 90
"""A worker imports torch, and tests share two cores with others."""


async def until(condition: Callable[[], bool], timeout_s: float = LOAD_TIMEOUT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def fake_launcher(**script) -> ProcessLauncher:
    arguments = ("-m", "luce.testing.fake_worker", "--script", json.dumps(script))
    return ProcessLauncher(sys.executable, arguments, write_line=lambda line: None)


def is_running(pid: int) -> bool:
    """False once the process is gone or waits, dead, for its new parent to reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def submit(
    handle: WorkerHandle, request_id: str, max_tokens: int = 24, prompt: list[int] = PROMPT
) -> WorkerStream:
    sampling = SamplingParams(max_tokens=max_tokens)
    return await handle.submit(request_id, pack_prompt(prompt), sampling)


async def read(stream: WorkerStream) -> list[int]:
    return [
        token async for batch in batches(stream) for delta in batch for token in delta.token_ids
    ]


async def outcome(stream: WorkerStream) -> list[object]:
    """Everything that ended the stream: one finish or one error, if the stream is right."""
    endings: list[object] = []
    try:
        async for batch in batches(stream):
            endings += [delta.finish for delta in batch if delta.finish]
    except WorkerLost as error:
        endings.append(type(error))
    return endings


# --- scripted workers: every state is reached for certain ---------------------------------


@pytest.mark.parametrize(
    ("state", "script"),
    [
        ("submitted", {"stall_reading": True}),
        ("admitted", {"hold_after": 0}),
        ("streaming", {"hold_after": 2}),
        ("draining", {"hold_after": 2}),
    ],
)
async def test_kill_9_in_each_request_state(state: str, script: dict):
    supervisor = Supervisor(LoadSpec(name="m", path="m"), fake_launcher(**script), backoff=QUICK)
    handle = supervisor.handle
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    tasks = [asyncio.create_task(submit(handle, f"r{i}")) for i in range(3)]
    streams: list[WorkerStream] = []
    if state == "submitted":
        await until(lambda: handle.in_flight == 3)
    else:
        streams = list(await asyncio.gather(*tasks))
    if state == "streaming":
        assert all([await stream.next() for stream in streams])
    if state == "draining":
        await handle.control("drain")
    killed = handle.pid
    os.kill(killed, signal.SIGKILL)
    if state == "submitted":
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [WorkerLost] * 3
    else:
        assert await asyncio.gather(*map(outcome, streams)) == [[WorkerLost]] * 3
        assert [(await stream.retired).error for stream in streams] == ["WorkerLost"] * 3
    assert handle.in_flight == 0
    await until(lambda: handle.state is WorkerState.READY)
    assert handle.pid != killed
    assert supervisor.num_restarts == 1
    await supervisor.stop(0)
    assert not is_running(handle.pid)


async def test_kill_9_while_the_next_process_loads(tmp_path: Path):
    may_load = tmp_path / "may load"
    may_load.touch()
    launcher = fake_launcher(load_until_file=str(may_load))
    supervisor = Supervisor(LoadSpec(name="m", path="m"), launcher, backoff=QUICK)
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), 60)
    may_load.unlink()
    for number in (1, 2):
        os.kill(supervisor.handle.pid, signal.SIGKILL)
        await until(lambda: supervisor.handle.state is WorkerState.LOST)
        await until(lambda: supervisor.handle.state is WorkerState.LOADING)
        assert supervisor.num_restarts == number
    may_load.touch()
    await until(lambda: supervisor.handle.state is WorkerState.READY)
    assert await read(await submit(supervisor.handle, "r1")) == PROMPT
    await supervisor.stop(0)


async def test_two_models_do_not_share_a_death():
    first, second = (
        Supervisor(LoadSpec(name=name, path="m"), fake_launcher(hold_after=1), backoff=QUICK)
        for name in "ab"
    )
    for supervisor in (first, second):
        supervisor.start()
    for supervisor in (first, second):
        await asyncio.wait_for(supervisor.wait_first_load(), 60)
    lost, kept = await asyncio.gather(submit(first.handle, "r1"), submit(second.handle, "r2"))
    os.kill(first.handle.pid, signal.SIGKILL)
    assert await outcome(lost) == [WorkerLost]
    assert second.handle.state is WorkerState.READY
    assert (await kept.next())[0].token_ids == PROMPT[:1]
    kept.cancel("client_gone")
    assert await outcome(kept) == ["cancelled"]
    await asyncio.gather(first.stop(0), second.stop(0))


# --- real workers -------------------------------------------------------------------------

LISTENER = """
    import asyncio, json, sys
    from luce.protocol.messages import LoadSpec
    from luce.protocol.sampling import SamplingParams
    from luce.testing.byte_tokenizer import pack_prompt
    from luce.workers.spawn import ProcessLauncher
    from luce.workers.supervisor import Supervisor

    async def main():
        path, arguments = sys.argv[1], json.loads(sys.argv[2])
        spec = LoadSpec(name="m", path=path, threads=1, max_ctx=512)
        supervisor = Supervisor(spec, ProcessLauncher(sys.executable, arguments))
        supervisor.start()
        await supervisor.wait_first_load()
        sampling = SamplingParams(max_tokens=400)
        stream = await supervisor.handle.submit("r1", pack_prompt([5, 6, 7]), sampling)
        await stream.next()
        print(supervisor.handle.pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""
REAL = ("-m", "luce.worker.main")
FAKE = ("-m", "luce.testing.fake_worker", "--script", '{"hold_after": 1, "ignore_shutdown": true}')


@pytest.mark.parametrize("arguments", [REAL, FAKE], ids=["real", "fake"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_listener_leaves_no_worker(tmp_path: Path, arguments, number):
    """The fake worker is deaf to SIGTERM and is only told by the end of its socket."""
    model = tiny_llama(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(LISTENER), str(model), json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        worker_pid = int(listener.stdout.readline())
        assert is_running(worker_pid)
        listener.send_signal(number)
    deadline = time.monotonic() + 60
    while is_running(worker_pid):
        assert time.monotonic() < deadline, "the worker outlived its listener"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


async def caught(handle: WorkerHandle, max_tokens: int) -> WorkerStream:
    """A request with output and more to come, its worker stopped where it is."""
    for number in itertools.count():
        stream = await submit(handle, f"long {number}", max_tokens=max_tokens)
        await stream.next()
        os.kill(handle.pid, signal.SIGSTOP)
        await asyncio.sleep(0.1)  # What it has sent comes.
        if not stream.retired.done():
            break
        os.kill(handle.pid, signal.SIGCONT)  # All had been sent before it was stopped.
    return stream


def real_supervisor(path: Path, lines: list[str] | None = None, **spec) -> Supervisor:
    write_line = lines.append if lines is not None else lambda line: None
    launcher = ProcessLauncher(write_line=write_line)
    load = LoadSpec(**{"name": "m", "path": str(path), "threads": 1, "max_ctx": 256, **spec})
    return Supervisor(load, launcher, backoff=QUICK)


async def test_a_real_worker_serves_is_killed_and_serves_the_same_again(model: Path):
    lines: list[str] = []
    supervisor = real_supervisor(model, lines)
    handle = supervisor.handle
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), LOAD_TIMEOUT_S)
    assert handle.limits.max_ctx == 256
    expected = await read(await submit(handle, "alone"))
    assert len(expected) == 24
    together = await asyncio.gather(*(submit(handle, f"r{i}") for i in range(4)))
    assert [await read(stream) for stream in together] == [expected] * 4
    await handle.control("check")

    stream = await caught(handle, max_tokens=200)
    os.kill(handle.pid, signal.SIGKILL)
    assert await outcome(stream) == [WorkerLost]
    await until(lambda: handle.state is WorkerState.READY)
    assert await read(await submit(handle, "again")) == expected
    await supervisor.stop(5)
    assert not is_running(handle.pid)
    assert not [line for line in lines if "Traceback" in line]


async def test_a_real_worker_serves_a_file_whose_name_is_no_text(model: Path, tmp_path: Path):
    strange = tmp_path / os.fsdecode(b"\xff\xe9 \xc3\xa9.gguf")
    strange.symlink_to(model)
    supervisor = real_supervisor(strange)
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), LOAD_TIMEOUT_S)
    assert len(await read(await submit(supervisor.handle, "r1"))) == 24
    await supervisor.stop(5)


async def test_a_real_worker_obeys_cancel_refuses_nonsense_and_frees_its_blocks(model: Path):
    supervisor = real_supervisor(model, max_concurrency=1, prefix_cache=False)
    handle = supervisor.handle
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), LOAD_TIMEOUT_S)
    stream = await caught(handle, max_tokens=230)
    stream.cancel("client_gone")
    os.kill(handle.pid, signal.SIGCONT)
    retired = await asyncio.wait_for(stream.retired, 60)
    assert retired.finish == "cancelled"
    assert retired.usage.completion_tokens < 230
    for prompt in ([], [handle.ready.vocab_size], [-1], [5] * 256):
        with pytest.raises(Exception, match=r"empty|not below|takes at most") as refusal:
            await submit(handle, "nonsense", prompt=prompt)
        assert refusal.value.reason in ("failed", "never_fits")
    await handle.control("check")
    await until(lambda: handle.stats.running == 0)
    await until(lambda: handle.stats.free_blocks == handle.stats.total_blocks)
    await supervisor.stop(5)


async def test_signals_to_a_real_worker(model: Path):
    """SIGINT is the listener's business; SIGTERM drains, and another process follows."""
    supervisor = real_supervisor(model)
    handle = supervisor.handle
    supervisor.start()
    await asyncio.wait_for(supervisor.wait_first_load(), LOAD_TIMEOUT_S)
    first_pid = handle.pid
    assert os.getpgid(first_pid) == first_pid
    os.kill(first_pid, signal.SIGINT)
    stream = await submit(handle, "r1", max_tokens=60)
    await stream.next()
    os.kill(first_pid, signal.SIGTERM)
    assert await outcome(stream) == ["length"]
    await until(lambda: handle.pid != first_pid and handle.state is WorkerState.READY)
    await supervisor.stop(5)


@pytest.mark.parametrize("damage", ["missing", "truncated", "magic", "empty_folder"])
async def test_a_bad_file_fails_the_first_start_in_one_sentence(tmp_path: Path, model, damage):
    path = tmp_path / "m.gguf"
    data = model.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "magic":
        path.write_bytes(b"XXXX" + data[4:])
    elif damage == "empty_folder":
        path.mkdir()
    lines: list[str] = []
    supervisor = real_supervisor(path, lines)
    supervisor.start()
    with pytest.raises(ModelFileError) as failure:
        await asyncio.wait_for(supervisor.wait_first_load(), LOAD_TIMEOUT_S)
    assert isinstance(supervisor.failed, StartupError)
    assert "\n" not in str(failure.value)
    assert not [line for line in lines if "Traceback" in line]
    await supervisor.stop(0)
