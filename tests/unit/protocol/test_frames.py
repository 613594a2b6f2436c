from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from luce.protocol import frames
from luce.protocol import messages as wire
from luce.protocol.frames import (
    MAX_FRAME_BYTES,
    FrameConnection,
    FrameGarbage,
    FrameTooLarge,
    FrameTruncated,
    encode_frame,
    listener_decoder,
    read_batches,
    worker_decoder,
)
from luce.protocol.sampling import SamplingParams

SAMPLING = SamplingParams(max_tokens=1, logit_bias={5: 1.5}, stop_token_ids=(1, 2), seed=2**64 - 1)
SUBMIT = wire.Submit("r1", b"\1\0\0\0", SAMPLING)
HELLO = wire.Hello(1, 2, "build")


def submit_of_body_size(size: int) -> wire.Submit:
    overhead = len(encode_frame(wire.Submit("r", bytes(2**17), SAMPLING))) - 4 - 2**17
    return wire.Submit("r", bytes(size - overhead), SAMPLING)


def test_the_layout_is_a_little_endian_length_and_msgpack():
    frame = encode_frame(wire.Cancel("r1", "client_gone"))
    assert struct.unpack_from("<I", frame)[0] == len(frame) - 4
    assert bytes(frame[4:]).startswith(b"\x83")
    assert b"client_gone" in frame


def test_sampling_survives_the_wire():
    assert worker_decoder().feed(encode_frame(SUBMIT)) == [SUBMIT]


def test_the_largest_frame_passes_and_one_byte_more_does_not():
    largest = submit_of_body_size(MAX_FRAME_BYTES)
    frame = encode_frame(largest)
    assert len(frame) == MAX_FRAME_BYTES + 4
    assert worker_decoder().feed(frame) == [largest]
    with pytest.raises(FrameTooLarge, match=str(MAX_FRAME_BYTES + 1)):
        encode_frame(submit_of_body_size(MAX_FRAME_BYTES + 1))


def test_a_length_over_the_cap_is_refused_before_its_body_comes():
    decoder = worker_decoder()
    with pytest.raises(FrameTooLarge, match=str(MAX_FRAME_BYTES + 1)):
        decoder.feed(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_a_value_the_wire_cannot_carry_is_named():
    with pytest.raises(FrameGarbage, match="Shutdown cannot be sent"):
        encode_frame(wire.Shutdown(2**64))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x93\1\2\3", b"\x81\xa4type\xa4Nope"])
def test_a_body_that_is_no_message_is_garbage_and_stays_so(body):
    decoder = listener_decoder()
    with pytest.raises(FrameGarbage):
        decoder.feed(struct.pack("<I", len(body)) + body)
    with pytest.raises(FrameGarbage):
        decoder.feed(encode_frame(HELLO))


def test_nesting_without_end_is_garbage():
    body = b"\x81\xa1x" + b"\x91" * 100_000 + b"\0"
    with pytest.raises(FrameGarbage):
        listener_decoder().feed(struct.pack("<I", len(body)) + body)


def test_trailing_bytes_inside_a_frame_are_garbage():
    frame = encode_frame(HELLO)
    struct.pack_into("<I", frame, 0, len(frame) - 4 + 1)
    with pytest.raises(FrameGarbage):
        listener_decoder().feed(bytes(frame) + b"\0")


def test_an_end_inside_a_frame_is_told_from_an_end_between_two():
    decoder = listener_decoder()
    frame = encode_frame(HELLO)
    decoder.feed(frame)
    decoder.end()
    decoder.feed(frame[:5])
    with pytest.raises(FrameTruncated, match="5 bytes"):
        decoder.end()


def test_the_blocking_reader_yields_until_the_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode_frame(SUBMIT) + encode_frame(wire.Shutdown(1.0)))
        ours.shutdown(socket.SHUT_WR)
        batches = list(read_batches(theirs, worker_decoder()))
    assert [m for batch in batches for m in batch] == [SUBMIT, wire.Shutdown(1.0)]


def test_the_blocking_reader_reports_a_truncation():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(encode_frame(SUBMIT)[:-1])
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(FrameTruncated):
            list(read_batches(theirs, worker_decoder()))


class Received:
    def __init__(self) -> None:
        self.batches: list[list[wire.ToListener]] = []
        self.closed: list[Exception | None] = []
        self.is_closed = asyncio.Event()

    def on_closed(self, reason: Exception | None) -> None:
        self.closed.append(reason)
        self.is_closed.set()

    async def open(self) -> tuple[FrameConnection, socket.socket]:
        ours, theirs = socket.socketpair()
        connection = FrameConnection(self.batches.append, self.on_closed)
        await connection.open(ours)
        return connection, theirs

    async def until_closed(self) -> None:
        async with asyncio.timeout(60):
            await self.is_closed.wait()


@pytest.mark.parametrize("loop_module", ["asyncio", "uvloop"])
def test_the_connection_sends_and_receives_both_ways(loop_module):
    run = pytest.importorskip(loop_module).run

    async def scenario() -> None:
        received = Received()
        connection, theirs = await received.open()
        with theirs:
            connection.send(SUBMIT)
            assert await asyncio.to_thread(lambda: next(read_batches(theirs, worker_decoder())))
            theirs.sendall(encode_frame(HELLO))
            theirs.shutdown(socket.SHUT_WR)
            await received.until_closed()
        assert received.batches == [[HELLO]]
        assert received.closed == [None]
        connection.send(SUBMIT)

    run(scenario())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (struct.pack("<I", 2**32 - 1), FrameTooLarge),
        (struct.pack("<I", 1) + b"\xc1", FrameGarbage),
        (encode_frame(HELLO)[:-1], FrameTruncated),
    ],
)
def test_the_connection_closes_itself_on_what_is_no_frame(data, error):
    async def scenario() -> None:
        received = Received()
        _, theirs = await received.open()
        with theirs:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            await received.until_closed()
            assert [type(reason) for reason in received.closed] == [error]
            assert theirs.recv(1) == b""

    asyncio.run(scenario())


def test_a_message_too_large_leaves_the_connection_open(monkeypatch):
    async def scenario() -> None:
        received = Received()
        connection, theirs = await received.open()
        with theirs:
            with pytest.raises(FrameTooLarge):
                connection.send(wire.Submit("r", bytes(200), SAMPLING))
            connection.send(wire.Shutdown(1.0))
            batch = await asyncio.to_thread(lambda: next(read_batches(theirs, worker_decoder())))
            assert batch == [wire.Shutdown(1.0)]
            connection.close()
            await received.until_closed()

    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    asyncio.run(scenario())


def test_close_gives_its_reason_once_and_drops_what_is_unsent():
    async def scenario() -> None:
        received = Received()
        connection, theirs = await received.open()
        with theirs:
            for _ in range(8):
                connection.send(wire.Submit("r", bytes(2**20), SAMPLING))
            reason = FrameGarbage("enough")
            connection.close(reason)
            connection.close(FrameGarbage("again"))
            await received.until_closed()
        assert received.closed == [reason]

    asyncio.run(scenario())


def test_a_peer_that_reads_nothing_does_not_block_the_loop():
    async def scenario() -> None:
        received = Received()
        connection, theirs = await received.open()
        with theirs:
            for _ in range(8):
                connection.send(wire.Submit("r", bytes(2**20), SAMPLING))
            theirs.sendall(encode_frame(HELLO))
            async with asyncio.timeout(60):
                while not received.batches:
                    await asyncio.sleep(0.001)
            reads: list[wire.ToWorker] = []

            def drain() -> None:
                for batch in read_batches(theirs, worker_decoder()):
                    reads.extend(batch)
                    if len(reads) == 8:
                        return

            thread = threading.Thread(target=drain)
            thread.start()
            await asyncio.to_thread(thread.join, 60)
            assert len(reads) == 8
            connection.close()
            await received.until_closed()

    asyncio.run(scenario())
