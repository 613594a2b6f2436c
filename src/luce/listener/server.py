"""The listener process: bind, serve, load, run until a signal, drain, exit code."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import logging
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from luce import __version__
from luce.config.listener import ListenerConfig, ServerConfig
from luce.listener.admission import Admissions
from luce.listener.app import Services, build_app
from luce.listener.bind import check_free
from luce.listener.body import BodyLimits
from luce.listener.entrance import Entrance, open_entrance
from luce.listener.gateway import DRAIN_PATIENCE_S, LOOPBACK, Gateway, GatewayCommand, check_gateway
from luce.listener.generate import Generator
from luce.listener.grammar_pool import GrammarPool
from luce.listener.http_server import HttpServer
from luce.listener.keepers import keeper_of
from luce.listener.option_files import check_option_files
from luce.listener.placing import machine_for, place_models
from luce.listener.residency import Placement, policy_of
from luce.listener.routes.generation import ClientRules
from luce.listener.served import ServedModel, ServedModels
from luce.listener.shutdown import Shutdown, farewell
from luce.listener.startup import say
from luce.observability.log import configure_logging
from luce.routing.router import TICK_S, Router
from luce.workers.spawn import Launcher
from luce.workers.supervisor import Supervisor

log = logging.getLogger(__name__)

GATEWAY_FAILED = 1
"""Exit code when the gateway ended by itself, however it did."""
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
        StartupError: a file is not what it should be, the address cannot be had, or a model does
            not come up.
    """
    configure_logging()
    check_option_files(config.models)
    port_option = "--port"
    if config.routing.routing_gateway is not None:
        check_gateway(config.routing.routing_gateway)
        check_free(config.listener.host, config.listener.port)
        port_option = "--routing-engine-port"
    with open_entrance(own_address(config), port_option) as entrance:
        machine = machine_for(config.routing, config.models)
        placed = place_models(config, machine)
        config = replace(config, models=tuple(model.config for model in placed))
        placement = Placement(placed, machine)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(config, placement, entrance, launcher))


def own_address(config: ServerConfig) -> ListenerConfig:
    """Where we listen ourselves: behind a gateway on loopback."""
    if config.routing.routing_gateway is None:
        return config.listener
    return replace(config.listener, host=LOOPBACK, port=config.routing.routing_engine_port)


async def _run(
    config: ServerConfig, placement: Placement, entrance: Entrance, launcher: Launcher | None
) -> int:
    return await ListenerProcess(config, placement, entrance, launcher).run()


class ListenerProcess:
    """Everything one server owns, wired together; made on its event loop.

    Args:
        config: what is served.
        placement: where the models are, and what the worker of each is told.
        entrance: where clients come in.
        launcher: starts workers; None = as processes of this interpreter.
    """

    def __init__(
        self,
        config: ServerConfig,
        placement: Placement,
        entrance: Entrance,
        launcher: Launcher | None = None,
    ) -> None:
        self._config = config
        self._entrance = entrance
        self._supervisors = [Supervisor(model.spec, launcher) for model in placement.placed]
        self._router = Router(
            [model.name for model in config.models],
            policy_of(config),
            config.listener.routing_queue_limit,
        )
        self._models = ServedModels(
            [
                ServedModel(model, supervisor.handle)
                for model, supervisor in zip(config.models, self._supervisors, strict=True)
            ],
            self._router,
        )
        self._keeper = keeper_of(config, self._router, self._models, self._supervisors, placement)
        self._executor = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="prompt")
        self._grammars = GrammarPool()
        admissions = Admissions(
            self._router,
            self._models,
            self._executor,
            config.listener.routing_queue_timeout_s or None,
            self._grammars,
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
        self._grace_s = 0.0
        self._is_stop_told = False
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
        # Not before: whoever reads it may ask for our end.
        say(f"luce {__version__} listens on {self._entrance.url} and loads {_names(self._config)}")
        http = asyncio.create_task(self._http.serve(sockets=[self._entrance.sock]), name="http")
        ticks = asyncio.create_task(self._tick(), name="router-tick")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        startup = asyncio.create_task(self._keeper.start(), name="start")
        try:
            await asyncio.wait({startup, stop, http}, return_when=asyncio.FIRST_COMPLETED)
            if startup.done():
                startup.result()
                self._announce()
                self._grace_s = self._config.listener.shutdown_grace_s
                return await self._serve_until(stop, http)
        finally:
            for task in (startup, ticks, stop):
                task.cancel()
            self._keeper.shut_down()
            if self._grace_s:
                self._tell_stop(0)  # A gateway that ended asks for it as well as a signal does.
            await self._shutdown(http).run(self._grace_s)
            await self._keeper.close()
            await asyncio.gather(startup, ticks, stop, return_exceptions=True)
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._grammars.close()
        return 0

    async def _serve_until(self, stop: asyncio.Task[bool], http: asyncio.Task[None]) -> int:
        """Serve, with a gateway if there is to be one; returns the exit code."""
        path = self._config.routing.routing_gateway
        if path is None:
            await asyncio.wait({stop, http}, return_when=asyncio.FIRST_COMPLETED)
            return 0
        public = self._config.listener
        command = GatewayCommand(path, self._entrance.url, public.host, public.port)
        gateway = Gateway(command)
        try:
            await asyncio.wait({stop, http, gateway.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not gateway.ended.done():
                return 0
            log.error("the gateway is gone", extra={"how": gateway.ended.result()})
            return GATEWAY_FAILED
        finally:
            await gateway.stop(self._force)

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
        if not self._stop.is_set():
            self._stop.set()
            has_gateway = self._config.routing.routing_gateway is not None and self._grace_s > 0
            self._tell_stop(DRAIN_PATIENCE_S if has_gateway else 0)
        elif not self._force.is_set():
            self._force.set()
            say("stopping at once")

    def _tell_stop(self, drain_s: float) -> None:
        """Say, once, what the end waits for; a gateway may take `drain_s` of it."""
        if not self._is_stop_told:
            self._is_stop_told = True
            say(farewell(self._generator.num_running, self._grace_s, drain_s))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._router.tick()
            self._keeper.tick()

    def _announce(self) -> None:
        say(f"ready: {_names(self._config)} at {self._entrance.url}\n")
        say("try:")
        say(f"  {self._entrance.curl}/v1/chat/completions \\")
        say("    -H 'Content-Type: application/json' \\")
        say(f"    -d {shlex.quote(example_body(self._config))}")


def example_body(config: ServerConfig) -> str:
    """A request that is answered; it names a model where none is loaded before it is asked for."""
    body: dict[str, object] = {"model": config.models[0].name}
    if not config.routing.load_on_demand:
        body = {}
    body["messages"] = [{"role": "user", "content": "What is the capital of France?"}]
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


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
