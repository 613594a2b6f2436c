from __future__ import annotations

import logging
from pathlib import Path

import pytest

from luce.config.listener import ListenerConfig
from luce.errors import BindError, UsageError
from luce.listener.bind import bind
from luce.listener.entrance import open_entrance

FILES = Path(__file__).parents[2] / "data" / "tls"


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("127.0.0.1", (), False),
        ("::1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("0.0.0.0", ("key",), False),
    ],
)
def test_who_is_open_to_the_network_without_a_key_is_warned(
    host: str, keys: tuple[str, ...], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        with open_entrance(ListenerConfig(host=host, port=0, api_key=keys)) as entrance:
            assert entrance.access.is_open is not bool(keys)
    assert ["every machine" in r.getMessage() for r in caplog.records] == [True] * warned


def test_how_it_is_reached() -> None:
    config = ListenerConfig(port=0, tls_cert=FILES / "cert.pem", tls_key=FILES / "key.pem")
    with open_entrance(config) as entrance:
        port = entrance.sock.getsockname()[1]
        assert entrance.url == f"https://127.0.0.1:{port}"
        assert entrance.curl == f"curl https://127.0.0.1:{port}"
        assert entrance.tls is not None


def test_how_a_unix_socket_is_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a socket"
    config = ListenerConfig(uds=path, api_key=("hidden",))
    with open_entrance(config) as entrance:
        assert entrance.url == f"unix:{path}"
        assert entrance.curl == (
            f"curl -H 'Authorization: Bearer KEY' --unix-socket '{path}' http://localhost"
        )
        assert "hidden" not in repr(entrance) + repr(config)
    assert caplog.records == []


def test_files_are_looked_at_before_the_address(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for wrong in ({"api_key_file": tmp_path / "none"}, {"tls_cert": tmp_path / "none"}):
            with pytest.raises(UsageError, match="cannot read"):
                with open_entrance(ListenerConfig(port=port, **wrong)):
                    pass
        with pytest.raises(BindError):
            with open_entrance(ListenerConfig(port=port)):
                pass
