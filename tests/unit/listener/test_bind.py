from __future__ import annotations

import socket

import pytest

from luce.errors import BindError
from luce.listener.bind import bind, check_free, url_of


def test_port_zero_picks_one_and_the_url_names_it() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert sock.getsockname()[1] > 0
        with socket.create_connection(sock.getsockname(), timeout=2):
            pass


def test_wildcard_is_shown_as_something_that_can_be_called() -> None:
    with bind("0.0.0.0", 0) as sock:
        assert url_of(sock).startswith("http://127.0.0.1:")


def test_ipv6() -> None:
    with bind("::1", 0) as sock:
        assert url_of(sock).startswith("http://[::1]:")


def test_port_in_use() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(BindError, match=f"127.0.0.1:{port}: it is in use.*another --port$"):
            bind("127.0.0.1", port)
        with pytest.raises(BindError, match="choose another --routing-engine-port"):
            bind("127.0.0.1", port, "--routing-engine-port")
        with pytest.raises(BindError, match="it is in use"):
            check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)


@pytest.mark.parametrize("host", ["999.1.1.1", "no such host", "203.0.113.7", "x" * 300])
def test_host_that_is_not_ours(host: str) -> None:
    with pytest.raises(BindError, match="cannot listen on"):
        bind(host, 0)
