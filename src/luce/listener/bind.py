"""Taking the address before anything slow begins, and naming it for people."""

from __future__ import annotations

import errno
import ipaddress
import socket

from luce.errors import BindError

BACKLOG = 2048
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_HINTS = {
    errno.EADDRINUSE: "it is in use; stop the other server or choose another {option}",
    errno.EACCES: "not permitted; ports below 1024 need privileges",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address",
}


def bind(host: str, port: int, option: str = "--port") -> socket.socket:
    """Listen on an address; the first of the name's addresses that works.

    Args:
        host: IPv4 or IPv6 address, or a name.
        port: 0 lets the system choose.
        option: where the port was written.

    Raises:
        BindError: none can be listened on; says why.
    """
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise BindError(f"cannot listen on {host}:{port}: unknown host ({error})") from error
    for family, kind, protocol, _, address in found:
        try:
            return _listen(socket.socket(family, kind, protocol), address)
        except OSError as error:
            failure = error
    reason = _reason(failure).format(option=option)
    raise BindError(f"cannot listen on {host}:{port}: {reason}") from failure


def check_free(host: str, port: int) -> None:
    """See early that another program, which may be permitted more than we, can listen there.

    Raises:
        BindError: it could not: somebody else does, or there is no such address.
    """
    try:
        bind(host, port).close()
    except BindError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """A URL that reaches this listening socket from this machine."""
    host, port = sock.getsockname()[:2]
    host = _WILDCARDS.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_public(sock: socket.socket) -> bool:
    """Whether other machines can reach this listening socket."""
    if sock.family == socket.AF_UNIX:
        return False
    return not ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def _listen(sock: socket.socket, address: tuple[object, ...]) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _reason(failure: OSError | None) -> str:
    if failure is None:
        return "the name has no address"
    return _HINTS.get(failure.errno or 0, failure.strerror or str(failure))
