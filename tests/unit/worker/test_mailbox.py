from __future__ import annotations

import queue
import socket
import struct
import threading
import time

import pytest

from luce.protocol import messages as wire
from luce.protocol.frames import FrameTooLarge, encode_frame, listener_decoder, read_batches
from luce.worker.mailbox import Mailbox


class Far:
    """The listener's end, and a mailbox at the other."""

    def __init__(self) -> None:
        self.sock, near = socket.socketpair()
        self.sock.settimeout(60)
        self.closed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.mailbox = Mailbox(near, lambda: self.closed.put(threading.current_thread().name))

    def send(self, *messages: wire.ToWorker) -> None:
        self.sock.sendall(b"".join(encode_frame(message) for message in messages))

    def read_to_end(self) -> list[wire.ToListener]:
        return [m for batch in read_batches(self.sock, listener_decoder()) for m in batch]


@pytest.fixture
def far():
    far = Far()
    yield far
    far.mailbox.close()
    far.sock.close()


def test_messages_come_in_order(far: Far):
    messages = [wire.Control(i, "check") for i in range(5)]
    far.send(*messages)
    received: list[wire.ToWorker] = []
    while len(received) < 5:
        received += far.mailbox.receive(wait=True)
    assert received == messages
    assert far.mailbox.receive(wait=False) == []


def test_receive_waits_without_polling(far: Far):
    got: queue.SimpleQueue[tuple[list[wire.ToWorker], float]] = queue.SimpleQueue()

    def receive() -> None:
        received = far.mailbox.receive(wait=True)
        got.put((received, time.thread_time()))

    thread = threading.Thread(target=receive)
    thread.start()
    time.sleep(0.2)
    assert got.empty()
    far.send(wire.Shutdown(1.0))
    received, computed_s = got.get(timeout=60)
    assert received == [wire.Shutdown(1.0)]
    thread.join()
    assert computed_s < 0.1


def test_post_wakes_the_receiver(far: Far):
    far.mailbox.post(wire.Shutdown(2.0))
    assert far.mailbox.receive(wait=True) == [wire.Shutdown(2.0)]


def test_close_sends_what_is_queued_first(far: Far, monkeypatch):
    monkeypatch.setattr("luce.worker.mailbox.CLOSE_PATIENCE_S", 60.0)
    sent = [wire.ControlDone(i, "x" * 1000) for i in range(1000)]
    for message in sent:
        far.mailbox.send(message)  # More than a kernel holds for a listener that reads nothing.
    received: queue.SimpleQueue[list[wire.ToListener]] = queue.SimpleQueue()
    reader = threading.Thread(target=lambda: received.put(far.read_to_end()))
    reader.start()
    far.mailbox.close()
    reader.join()
    assert received.get() == sent
    assert far.closed.empty()


def test_what_is_sent_is_in_the_socket_when_send_returns(far: Far):
    far.sock.setblocking(False)
    for i in range(100):
        far.mailbox.send(wire.ControlDone(i))
        assert far.sock.recv(1 << 16) == encode_frame(wire.ControlDone(i))


def test_a_listener_that_reads_late_gets_all_in_order(far: Far):
    sent = [wire.ControlDone(i, "x" * 3000) for i in range(500)]
    received: list[wire.ToListener] = []
    batches = read_batches(far.sock, listener_decoder())
    # Twice, so that direct sending begins again behind a queue that was emptied.
    for end in (250, 500):
        for message in sent[end - 250 : end]:
            far.mailbox.send(message)
        while len(received) < end:
            received += next(batches)
    assert received == sent


def test_send_never_waits_for_a_listener_that_reads_nothing(far: Far):
    detail = "x" * 100_000
    started_s = time.monotonic()
    for i in range(100):
        far.mailbox.send(wire.ControlDone(i, detail))
    assert time.monotonic() - started_s < 30.0
    far.mailbox.post(wire.Shutdown(0.0))
    assert far.mailbox.receive(wait=True) == [wire.Shutdown(0.0)]
    received: list[wire.ToListener] = []
    for batch in read_batches(far.sock, listener_decoder()):
        received += batch
        if len(received) == 100:
            break
    assert received[-1] == wire.ControlDone(99, detail)


def test_a_message_over_the_cap_is_an_error_of_the_sender(far: Far):
    with pytest.raises(FrameTooLarge):
        far.mailbox.send(wire.ControlDone(1, "x" * (17 * 2**20)))
    far.mailbox.send(wire.ControlDone(2))
    far.mailbox.close()
    assert far.read_to_end() == [wire.ControlDone(2)]


def test_the_end_of_the_listener_is_told_once(far: Far):
    far.sock.shutdown(socket.SHUT_RDWR)
    far.sock.close()
    assert far.closed.get(timeout=60) == "mailbox-reader"
    far.mailbox.send(wire.ControlDone(1))
    far.mailbox.close()
    assert far.closed.empty()


@pytest.mark.parametrize("is_told", [False, True])
def test_an_end_that_was_not_announced_is_worth_a_warning(
    far: Far, is_told: bool, caplog: pytest.LogCaptureFixture
):
    if is_told:
        far.send(wire.Shutdown(0))
    far.sock.shutdown(socket.SHUT_RDWR)
    far.closed.get(timeout=60)
    assert [record.message for record in caplog.records] == ["listener gone"] * (not is_told)


def test_garbage_counts_as_the_end(far: Far):
    far.sock.sendall(struct.pack("<I", 1) + b"\xc1")
    assert far.closed.get(timeout=60) == "mailbox-reader"


def test_our_own_close_is_not_the_listeners_end(far: Far):
    far.mailbox.close()
    assert far.sock.recv(1) == b""
    assert far.closed.empty()
