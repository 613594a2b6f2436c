"""A worker process: connect, load, serve, leave. Started by `luce.workers.spawn`.

`python -m luce.worker.main --fd N`, N being an inherited end of a Unix socketpair. The border
where every exception becomes a `Fault`: nothing here ends in a traceback on the wire.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import socket
import sys
import time

import msgspec

from luce import __version__
from luce.errors import InternalError, LuceError, StartupError
from luce.observability.log import configure_logging
from luce.protocol import messages as wire
from luce.protocol.paths import text_to_wire
from luce.worker.lifeline import die_with_parent, leave_signals_to_listener
from luce.worker.load import LoadStopped, LoadWatch, load_model
from luce.worker.loop import WorkerLoop
from luce.worker.mailbox import Mailbox
from luce.worker.ports import LoopOptions

log = logging.getLogger(__name__)

BUILD = f"luce {__version__}"
TERMINATE_GRACE_S = 30.0
EXIT_FAULT = 1
EXIT_LISTENER_GONE = 0


def main(argv: list[str] | None = None) -> int:
    """Run one worker until the listener is done with it; returns the exit code."""
    parent_pid = os.getppid()
    parser = argparse.ArgumentParser(prog="luce.worker.main", allow_abbrev=False)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the listener")
    options = parser.parse_args(argv)
    configure_logging()
    die_with_parent(parent_pid)
    mailbox = Mailbox(socket.socket(fileno=options.fd), on_closed=_leave)
    leave_signals_to_listener(_Terminate(mailbox))
    mailbox.send(wire.Hello(wire.PROTOCOL_VERSION, os.getpid(), BUILD))
    try:
        return serve(mailbox)
    finally:
        mailbox.close()


def serve(mailbox: Mailbox) -> int:
    """Load what the listener asks for and run it; every failure becomes a fatal `Fault`."""
    try:
        spec = _await_load(mailbox)
        _serve_model(spec, mailbox)
    except LoadStopped:
        return 0
    except StartupError as error:
        # The listener says it: in one line if it gives up, in its log if it tries again.
        log.debug("worker cannot serve", extra={"error": str(error)})
        mailbox.send(wire.Fault(type(error).__name__, text_to_wire(str(error)), fatal=True))
        return error.exit_code
    except LuceError as error:
        log.error("worker cannot serve", extra={"error": str(error)})
        mailbox.send(wire.Fault(type(error).__name__, text_to_wire(str(error)), fatal=True))
        return EXIT_FAULT
    except Exception:
        log.exception("worker failed")
        message = "The model's process failed; its log has the details."
        mailbox.send(wire.Fault(InternalError.__name__, message, fatal=True))
        return EXIT_FAULT
    return 0


def _await_load(mailbox: Mailbox) -> wire.LoadSpec:
    """Wait for the first message.

    Raises:
        LoadStopped: the listener wants nothing after all.
    """
    while True:
        messages = mailbox.receive(wait=True)
        for index, message in enumerate(messages):
            if isinstance(message, wire.Shutdown):
                raise LoadStopped
            if isinstance(message, wire.Load):
                for later in messages[index + 1 :]:
                    mailbox.post(later)
                return message.spec


def _serve_model(spec: wire.LoadSpec, mailbox: Mailbox) -> None:
    started_ns = time.monotonic_ns()
    model = load_model(spec, LoadWatch(mailbox, time.monotonic_ns))
    try:
        # What loading left behind lives as long as we do; a collection need not walk it.
        gc.collect()
        gc.freeze()
        load_ms = (time.monotonic_ns() - started_ns) // 1_000_000
        ready = msgspec.structs.replace(model.ready, load_ms=load_ms)
        loop_options = LoopOptions(
            ready.vocab_size,
            model.depth,
            time.monotonic_ns,
            ready.num_layers,
            ready.hidden_size,
        )
        mailbox.send(ready)
        WorkerLoop(model.engine, model.scheduler, mailbox, loop_options).run()
    finally:
        model.engine.close()


class _Terminate:
    """SIGTERM: the first drains as a Shutdown would, another ends at once."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._grace_s = TERMINATE_GRACE_S

    def __call__(self) -> None:
        self._mailbox.post(wire.Shutdown(self._grace_s))
        self._grace_s = 0.0


def _leave() -> None:
    """The listener is gone. Nothing is worth finishing, and the engine may be mid-step."""
    os._exit(EXIT_LISTENER_GONE)


if __name__ == "__main__":
    sys.exit(main())
