"""The listener process: bind, serve, load, run until a signal, drain, exit code."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from luce import __version__
from luce.config.listener import ListenerConfig, ServerConfig
from luce.listener.admission import Admissions
from luce.listener.app import Services, build_app
from luce.listener.body import BodyLimits
from luce.listener.entrance import Entrance, open_entrance
from luce.listener.generate import Generator
from luce.listener.http_server import HttpServer
from luce.listener.routes.generation import ClientRules
from luce.listener.served import ServedModel, ServedModels
from luce.listener.shutdown import Shutdown
from luce.listener.startup import load_spec, say, start_models
from luce.observability.log import configure_logging
from luce.routing.policy import PrimaryFirst
from luce.routing.router import TICK_S, Router
from luce.workers.spawn import Launcher
from luce.workers.supervisor import Supervisor

_UPLOAD_STALLS = 10
"""A whole upload may take this many times the longest pause within it."""


def serve(config: ServerConfig, launcher: Launcher | None = None) -> int:
    """Run the server until a signal ends it.

    Args:
        config: what to serve.
        launcher: starts workers; None = as processes of this interpreter.

    Returns:
        The exit code of an orderly end, 0.

    Raises:
        StartupError: the address cannot be had, or a model does not come up.
    """
    configure_logging()
    with open_entrance(config.listener) as entrance:
        say(f"luce {__version__} listens on {entrance.url} and loads {_names(config)}")
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(config, entrance, launcher))


async def _run(config: ServerConfig, entrance: Entrance, launcher: Launcher | None) -> int:
    return await ListenerProcess(config, entrance, launcher).run()


class ListenerProcess:
    """Everything one server owns, wired together; made on its event loop."""

    def __init__(
        self, config: ServerConfig, entrance: Entrance, launcher: Launcher | None = None
    ) -> None:
        self._config = config
        self._entrance = entrance
        self._supervisors = [Supervisor(load_spec(model), launcher) for model in config.models]
        self._router = Router(
            [model.name for model in config.models],
            PrimaryFirst(),
            config.listener.routing_queue_limit,
        )
        self._models = ServedModels(
            [
                ServedModel(model, supervisor.handle)
                for model, supervisor in zip(config.models, self._supervisors, strict=True)
            ],
            self._router,
        )
        self._executor = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="prompt")
        admissions = Admissions(
            self._router,
            self._models,
            self._executor,
            config.listener.routing_queue_timeout_s or None,
        )
        self._generator = Generator(admissions)
        services = Services(
            self._router,
            self._models,
            self._generator,
            client_rules(config.listener),
            self._executor,
            created=int(datetime.now(tz=UTC).timestamp()),
            access=entrance.access,
            cors=entrance.cors,
        )
        self._http = HttpServer(build_app(services), entrance.tls)
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The worker of each model, by priority."""
        return self._supervisors

    async def run(self) -> int:
        """Serve until told to stop.

        Raises:
            StartupError: a model does not come up.
        """
        self._watch_signals()
        http = asyncio.create_task(self._http.serve(sockets=[self._entrance.sock]), name="http")
        ticks = asyncio.create_task(self._tick(), name="router-tick")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        startup = asyncio.create_task(start_models(self._models, self._supervisors))
        grace_s = 0.0
        try:
            await asyncio.wait({startup, stop, http}, return_when=asyncio.FIRST_COMPLETED)
            if startup.done():
                startup.result()
                self._announce()
                await asyncio.wait({stop, http}, return_when=asyncio.FIRST_COMPLETED)
                grace_s = self._config.listener.shutdown_grace_s
        finally:
            for task in (startup, ticks, stop):
                task.cancel()
            await self._shutdown(http).run(grace_s)
            await asyncio.gather(startup, ticks, stop, return_exceptions=True)
            self._executor.shutdown(wait=False, cancel_futures=True)
        return 0

    def _shutdown(self, http: asyncio.Task[None]) -> Shutdown:
        return Shutdown(
            self._router, self._generator, self._supervisors, self._http, http, self._force
        )

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        """The first one asks for an orderly end, the second for one at once."""
        (self._force if self._stop.is_set() else self._stop).set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._router.tick()

    def _announce(self) -> None:
        say(f"ready: {_names(self._config)} at {self._entrance.url}\n")
        say("try:")
        say(f"  {self._entrance.curl}/v1/chat/completions \\")
        say("    -H 'Content-Type: application/json' \\")
        question = '{"role":"user","content":"What is the capital of France?"}'
        say(f"""    -d '{{"messages":[{question}]}}'""")


def client_rules(config: ListenerConfig) -> ClientRules:
    """How the configuration wants clients to be treated."""
    stall_s = float(config.stall_timeout_s)
    return ClientRules(
        body=BodyLimits(config.max_body_mib * 2**20, stall_s, stall_s * _UPLOAD_STALLS),
        keep_alive_interval_s=float(config.keep_alive_interval_s),
        stall_s=stall_s,
    )


def _names(config: ServerConfig) -> str:
    return ", ".join(model.name for model in config.models)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loops if it is installed; asyncio's own otherwise."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
        "uvloop"
    ).new_event_loop
    return factory
