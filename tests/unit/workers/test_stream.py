from __future__ import annotations

import asyncio
import contextvars

import pytest

from luce.errors import DeviceOutOfMemory, WorkerLost
from luce.protocol.messages import Retired, SeqDelta, Usage, WorkerTimings
from luce.protocol.sampling import TokenLogprobs
from luce.testing.stream_reader import batches
from luce.workers import stream as stream_module
from luce.workers.stream import WorkerStream

pytestmark = pytest.mark.anyio


def retired(finish="stop", error="") -> Retired:
    usage = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=1)
    return Retired("r", finish, usage, WorkerTimings(admitted_ns=1), error)


@pytest.fixture
async def cancels() -> list[str]:
    return []


@pytest.fixture
async def stream(cancels) -> WorkerStream:
    return WorkerStream("r", 3, cancels.append)


async def test_next_waits_then_gives_all(stream):
    waiting = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.push(SeqDelta("r", [1]))
    stream.push(SeqDelta("r", [2]))
    assert await waiting == [SeqDelta("r", [1]), SeqDelta("r", [2])]


async def test_an_empty_delta_without_finish_wakes_nobody(stream):
    stream.push(SeqDelta("r", []))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.next(), 0.01)
    stream.push(SeqDelta("r", [], "stop"))
    assert await stream.next() == [SeqDelta("r", [], "stop")]


async def test_nothing_follows_the_final_delta(stream):
    stream.push(SeqDelta("r", [1], "length"))
    stream.push(SeqDelta("r", [2]))
    stream.fail(WorkerLost("too late"))
    stream.retire(retired("length"))
    assert await stream.next() == [SeqDelta("r", [1], "length")]
    assert await stream.next() == []
    assert [batch async for batch in batches(stream)] == []


async def test_a_retirement_without_a_final_delta_ends_the_stream(stream):
    stream.push(SeqDelta("r", [1]))
    stream.retire(retired("cancelled"))
    assert await stream.next() == [SeqDelta("r", [1]), SeqDelta("r", [], "cancelled")]
    assert await stream.next() == []
    assert stream.retired.result().finish == "cancelled"


async def test_a_delta_that_says_error_waits_for_its_reason(stream):
    stream.push(SeqDelta("r", [1], "error"))
    assert await stream.next() == [SeqDelta("r", [1])]
    stream.fail(DeviceOutOfMemory("full"))
    stream.retire(retired("error", "DeviceOutOfMemory"))
    with pytest.raises(DeviceOutOfMemory, match="full"):
        await stream.next()


async def test_an_error_comes_after_what_came_before_it(stream):
    stream.push(SeqDelta("r", [1]))
    stream.fail(WorkerLost("gone"))
    assert await stream.next() == [SeqDelta("r", [1])]
    with pytest.raises(WorkerLost):
        await stream.next()


async def test_a_reader_that_left_can_come_back(stream):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.next(), 0.01)
    stream.push(SeqDelta("r", [1]))
    assert await stream.next() == [SeqDelta("r", [1])]


async def test_the_buffer_is_bounded_and_its_end_is_a_cancel(stream, cancels, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_BUFFERED_TOKENS", 4)
    for token in range(10):
        stream.push(SeqDelta("r", [token]))
    assert cancels == ["slow_reader"]
    batch = await stream.next()
    assert [delta.token_ids for delta in batch] == [[0], [1], [2], [3], []]
    assert batch[-1].finish == "cancelled"


async def test_log_probabilities_come_along_and_take_room(stream, cancels, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_BUFFERED_TOKENS", 6)
    entry = TokenLogprobs(-0.5, (1, 2), (-0.5, -1.0))
    stream.push(SeqDelta("r", [1], None, [entry]))
    stream.push(SeqDelta("r", [2], "error", [entry]))
    assert cancels == []
    assert await stream.next() == [
        SeqDelta("r", [1], None, [entry]),
        SeqDelta("r", [2], None, [entry]),
    ]
    for token in (1, 2, 3):
        stream.push(SeqDelta("r", [token], None, [entry]))
    assert cancels == ["slow_reader"]


async def test_reading_makes_room_again(stream, cancels, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_BUFFERED_TOKENS", 4)
    for token in range(12):
        stream.push(SeqDelta("r", [token]))
        assert (await stream.next())[0].token_ids == [token]
    assert cancels == []


async def test_cancel_is_sent_once_and_not_after_retirement(stream, cancels):
    stream.cancel("client_gone")
    stream.cancel("stop_string")
    assert cancels == ["client_gone"]
    other = WorkerStream("r2", 0, cancels.append)
    other.retire(retired())
    other.cancel("client_gone")
    assert cancels == ["client_gone"]


class Follower:
    """Takes whatever it is called for."""

    def __init__(self, stream: WorkerStream) -> None:
        self.stream = stream
        self.taken: list[list[SeqDelta] | Exception] = []
        stream.follow(self)

    def __call__(self) -> None:
        try:
            self.taken.append(self.stream.take())
        except WorkerLost as error:
            self.taken.append(error)


async def test_a_follower_is_called_once_for_what_comes_together(stream):
    follower = Follower(stream)
    stream.push(SeqDelta("r", [1]))
    stream.push(SeqDelta("r", [2]))
    assert follower.taken == []
    await asyncio.sleep(0)
    assert follower.taken == [[SeqDelta("r", [1]), SeqDelta("r", [2])]]
    stream.push(SeqDelta("r", [3], "stop"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert follower.taken[1:] == [[SeqDelta("r", [3], "stop")]]


async def test_who_follows_late_is_called_for_what_has_come(stream):
    stream.push(SeqDelta("r", [1]))
    follower = Follower(stream)
    await asyncio.sleep(0)
    assert follower.taken == [[SeqDelta("r", [1])]]


async def test_a_follower_gets_an_error_behind_what_came_before_it(stream):
    follower, lost = Follower(stream), WorkerLost("gone")
    stream.push(SeqDelta("r", [1]))
    stream.fail(lost)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert follower.taken == [[SeqDelta("r", [1])], lost]


async def test_who_follows_no_more_is_not_called(stream):
    follower = Follower(stream)
    stream.push(SeqDelta("r", [1]))
    stream.unfollow()
    stream.push(SeqDelta("r", [2]))
    await asyncio.sleep(0)
    assert follower.taken == []
    assert len(await stream.next()) == 2


async def test_a_follower_is_called_in_its_own_context(stream):
    names: list[str] = []
    name = contextvars.ContextVar("name", default="")
    name.set("mine")
    stream.follow(lambda: names.append(name.get()))
    name.set("another's")
    stream.push(SeqDelta("r", [1]))
    await asyncio.sleep(0)
    assert names == ["mine"]
