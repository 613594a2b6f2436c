"""A gateway's options against those of the server's address."""

from __future__ import annotations

import pytest

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve
from luce.errors import UsageError

GATEWAY = "m.gguf --routing-gateway gw"


@pytest.mark.parametrize(
    "line",
    [
        GATEWAY,
        f"{GATEWAY} --routing-engine-port 9000 --port 9001",
        f"{GATEWAY} --host 192.168.1.5 --port 8491",
        f"{GATEWAY} --host ::1 --port 8491",
    ],
)
def test_good(line: str) -> None:
    assert str(resolve(read_launch(line.split())).config.routing.routing_gateway) == "gw"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("m.gguf --routing-engine-port 9000", "--routing-engine-port needs --routing-gateway"),
        (f"{GATEWAY} --port 8491", "--port and --routing-engine-port are both 8491"),
        (f"{GATEWAY} --host 0.0.0.0 --port 8491", "are both 8491"),
        (f"{GATEWAY} --host :: --port 8491", "are both 8491"),
        (f"{GATEWAY} --host localhost --port 8491", "are both 8491"),
        (f"{GATEWAY} --uds x.sock", "--routing-gateway and --uds exclude each other"),
        (f"{GATEWAY} --tls-cert c.pem", "--routing-gateway and --tls-cert exclude each other"),
        (f"{GATEWAY} --routing-engine-port 0", "0 is out of range, 1 to 65535"),
        (f"{GATEWAY} --routing-engine-port 65536", "65536 is out of range"),
        ("m.gguf --routing-gateway", "--routing-gateway needs a value"),
        (f"{GATEWAY} --routing-gateway other", "--routing-gateway is given more than once"),
    ],
)
def test_bad(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(read_launch(line.split()))
    assert problem in str(raised.value)
