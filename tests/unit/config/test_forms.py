"""Forms of names and addresses."""

from __future__ import annotations

import pytest

from luce.config.forms import (
    check_api_key,
    check_host,
    check_model_name,
    check_origin,
    snapshot_bytes,
)
from luce.config.option import BadValue


@pytest.mark.parametrize("name", ["a", "Zürich 7B", "org/model:tag", "automatic", "-x"])
def test_names(name: str) -> None:
    check_model_name(name)


@pytest.mark.parametrize("name", ["auto", "AUTO", "Auto"])
def test_reserved_name(name: str) -> None:
    with pytest.raises(BadValue, match=f"'{name}' is reserved"):
        check_model_name(name)


@pytest.mark.parametrize("name", [" ", "a ", "\ta", "a\nb", "a\x7f", "\ud800"])
def test_names_must_be_readable(name: str) -> None:
    with pytest.raises(BadValue, match="must be printable"):
        check_model_name(name)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::", "localhost", "my-host.org"])
def test_hosts(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize("host", ["a b", "höst", "a\n", "\x00"])
def test_no_hosts(host: str) -> None:
    with pytest.raises(BadValue, match="is no address"):
        check_host(host)


@pytest.mark.parametrize("host", ["999.1.1.1", "1.2.3", "1", "...", "127.0.0.01"])
def test_numbers_that_are_no_address(host: str) -> None:
    with pytest.raises(BadValue, match="is no IPv4 address"):
        check_host(host)


@pytest.mark.parametrize("key", ["k", "sk-1", "a,b", "#x", "~" * 1024, '"'])
def test_keys(key: str) -> None:
    check_api_key(key)


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "schl\u00fcssel", "a\x7f", "x" * 1025])
def test_no_keys_and_none_is_repeated(key: str) -> None:
    with pytest.raises(BadValue, match="a key") as refused:
        check_api_key(key)
    assert len(key) < 2 or key not in str(refused.value)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "http://localhost",
        "https://chat.example.com:8443",
        "http://[::1]:3000",
        "app://obsidian.md",
        "chrome-extension://abcdef",
    ],
)
def test_origins(origin: str) -> None:
    check_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "localhost",
        "http://",
        "http://a/",
        "http://a/path",
        "http://A",
        "http://a,http://b",
        "http://a b",
        "http://*.example.com",
        "http://a:port",
        "http://a@b",
        "http://a\n",
        "http://a:123456",
    ],
)
def test_no_origins(origin: str) -> None:
    with pytest.raises(BadValue, match="is no origin"):
        check_origin(origin)


@pytest.mark.parametrize(
    ("text", "nbytes"), [("auto", None), ("0", 0), ("512MiB", 512 << 20), ("1.5G", 3 << 29)]
)
def test_snapshot_memory(text: str, nbytes: int | None) -> None:
    assert snapshot_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "much", "-1", "5 %", "Auto"])
def test_no_snapshot_memory(text: str) -> None:
    with pytest.raises(BadValue, match="or auto"):
        snapshot_bytes(text)
