"""How a whole server opens its entrance: keys, certificates and sockets, before any model."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_harness import CHAT, chat_body

from luce.testing.tiny_models import tiny_llama

HERE = Path(__file__).parent
TLS = HERE.parent / "data" / "tls"
KEY = "sk-process-key"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@contextmanager
def serving(
    model: Path, routing: dict[str, Any] | None = None, **listener: Any
) -> Iterator[subprocess.Popen[str]]:
    setup = {
        "listener": listener,
        "routing": routing or {},
        "models": [{"path": str(model), "name": "tiny"}],
        "script": {"vocab_size": 1000},
    }
    process = subprocess.Popen(
        [sys.executable, str(HERE / "serve_fake.py"), json.dumps(setup)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_ready(process: subprocess.Popen[str]) -> str:
    """Its output up to the line that says it serves."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "'Content-Type" in line:
            return "".join(lines)
    raise AssertionError(lines)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_unix_socket_is_named_served_and_removed(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with serving(model, uds=str(path)) as process:
        said = until_ready(process)
        assert f"listens on unix:{path} and loads tiny" in said
        assert f"curl --unix-socket {path} http://localhost{CHAT}" in said
        transport = httpx2.HTTPTransport(uds=str(path))
        with httpx2.Client(base_url="http://localhost", transport=transport) as client:
            assert client.post(CHAT, json=chat_body()).status_code == 200
        process.send_signal(signal.SIGTERM)
        code, _, err = end(process)
    assert code == 0
    assert "every machine" not in err
    assert not path.exists()


def test_a_killed_servers_unix_socket_is_taken_over(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    with serving(model, uds=str(path)) as process:
        until_ready(process)
    assert path.exists()
    with serving(model, uds=str(path)) as process:
        until_ready(process)
        with serving(model, uds=str(path)) as second:
            code, out, err = end(second)
            assert (code, out) == (5, "")
            assert f"{path}: it is in use" in err


def test_keys_and_a_certificate(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    file.chmod(0o600)
    tls: dict[str, Any] = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}
    with serving(model, host="0.0.0.0", api_key_file=str(file), **tls) as process:
        said = until_ready(process)
        url = said.partition("ready: tiny at ")[2].partition("\n")[0]
        assert url.startswith("https://127.0.0.1:")
        assert f"curl -H 'Authorization: Bearer KEY' {url}{CHAT}" in said
        trusted = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        with httpx2.Client(base_url=url, verify=trusted) as client:
            assert client.get("/v1/models").status_code == 401
            headers = {"authorization": f"Bearer {KEY}"}
            assert client.post(CHAT, json=chat_body(), headers=headers).status_code == 200
        process.send_signal(signal.SIGTERM)
        code, out, err = end(process)
    assert code == 0
    assert "every machine" not in err
    assert KEY not in said + out + err


def test_open_to_the_network_without_a_key_is_warned_of(model: Path) -> None:
    with serving(model, host="0.0.0.0") as process:
        until_ready(process)
        process.send_signal(signal.SIGTERM)
        code, _, err = end(process)
    assert code == 0
    assert "WARNING" in err
    assert "every machine of the network can use this server" in err


@pytest.mark.parametrize(
    ("listener", "code", "says"),
    [
        ({"api_key_file": "/dev/null"}, 2, "there is no key in /dev/null"),
        ({"api_key_file": "/nowhere/keys"}, 2, "cannot read /nowhere/keys"),
        ({"tls_cert": "/nowhere/cert.pem"}, 2, "cannot read /nowhere/cert.pem"),
        (
            {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "encrypted_key.pem")},
            2,
            "is encrypted",
        ),
        (
            {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "other_key.pem")},
            2,
            "does not belong to the certificate",
        ),
        ({"uds": "/nowhere/luce.sock"}, 5, "cannot listen on /nowhere/luce.sock"),
    ],
)
def test_wrong_files_end_it_before_anything_loads(
    model: Path, listener: dict[str, Any], code: int, says: str
) -> None:
    with serving(model, **listener) as process:
        ended, out, err = end(process)
    assert (ended, out) == (code, "")
    (line,) = err.splitlines()
    assert line.startswith("luce_server: ")
    assert says in line


@pytest.mark.parametrize(
    ("routing", "says"),
    [
        ({"device_memory": ["hip:7=1GiB"]}, "--device-memory hip:7: no such device"),
        ({"device_inventory": "/nowhere/devices.json"}, "/nowhere/devices.json"),
    ],
)
def test_devices_that_are_not_there_end_it_before_it_says_that_it_loads(
    model: Path, routing: dict[str, Any], says: str
) -> None:
    with serving(model, routing) as process:
        ended, out, err = end(process)
    assert (ended, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("luce_server: ")
    assert says in line
