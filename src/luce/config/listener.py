"""Options of the listener; they belong to the first block of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.config.forms import check_api_key, check_host, check_origin
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
    uds: Path | None = option(
        None,
        "--uds",
        metavar="PATH",
        help="Listen on this Unix socket instead of an address; its owner and group may connect.",
    )
    tls_cert: Path | None = option(
        None,
        "--tls-cert",
        metavar="FILE",
        help="Serve HTTPS with this certificate (PEM), the intermediate ones behind it.",
    )
    tls_key: Path | None = option(
        None,
        "--tls-key",
        metavar="FILE",
        help="The certificate's private key (PEM, not encrypted). Default: it is in the file of "
        "--tls-cert.",
    )
    api_key: tuple[str, ...] = option(
        (),
        "--api-key",
        metavar="KEY",
        check=check_api_key,
        secret=True,
        help="Answer only who sends this key; may be written several times. Other users of the "
        "machine can read command lines: --api-key-file keeps it from them.",
    )
    api_key_file: Path | None = option(
        None,
        "--api-key-file",
        metavar="FILE",
        help="A file of such keys, one a line; lines that begin with # are comments.",
    )
    cors: bool = option(
        True,
        "--cors",
        help="Let pages of other origins use the server from a browser: with a key, of any "
        "origin; without, those of this machine.",
    )
    cors_origin: tuple[str, ...] = option(
        (),
        "--cors-origin",
        metavar="ORIGIN",
        check=check_origin,
        help="Only pages of this origin (https://chat.example.com), or of any (*); may be written "
        "several times.",
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
