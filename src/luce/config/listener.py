"""Options of the listener; they belong to the first block of the command line."""

from __future__ import annotations

from dataclasses import dataclass

from luce.config.forms import check_host
from luce.config.model import ModelConfig
from luce.config.option import option
from luce.config.routing import RoutingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """Where the server listens and how it treats clients; resolved once, never mutated."""

    host: str = option(
        "127.0.0.1",
        "--host",
        metavar="ADDRESS",
        variable="LUCE_HOST",
        check=check_host,
        help="Address to listen on.",
    )
    port: int = option(
        8080,
        "--port",
        metavar="N",
        minimum=0,
        maximum=65535,
        variable="LUCE_PORT",
        help="Port to listen on; 0 picks a free one and prints it.",
    )
    routing_queue_limit: int = option(
        32,
        "--routing-queue-limit",
        metavar="N",
        minimum=0,
        help="Requests that may wait for room; one more is answered 503. 0: never wait.",
    )
    routing_queue_timeout_s: int = option(
        0,
        "--routing-queue-timeout-s",
        metavar="N",
        unit="seconds",
        minimum=0,
        help="A request that has waited this long for room is answered 503. 0: it may wait for "
        "ever.",
    )
    max_body_mib: int = option(
        64, "--max-body-mib", metavar="N", unit="MiB", minimum=1, help="Largest request body."
    )
    keep_alive_interval_s: int = option(
        5,
        "--keep-alive-interval-s",
        metavar="N",
        unit="seconds",
        minimum=1,
        help="A silent stream gets a comment line this often.",
    )
    stall_timeout_s: int = option(
        30,
        "--stall-timeout-s",
        metavar="N",
        unit="seconds",
        minimum=1,
        help="A client that reads nothing for this long is dropped.",
    )
    shutdown_grace_s: int = option(
        30,
        "--shutdown-grace-s",
        metavar="N",
        unit="seconds",
        minimum=0,
        help="How long running requests may take to end after SIGTERM.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything one `luce_server` command said.

    Attributes:
        models: the ones that load, in the order requests try them: the primary first.
    """

    listener: ListenerConfig
    models: tuple[ModelConfig, ...]
    routing: RoutingConfig = RoutingConfig()
