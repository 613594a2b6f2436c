"""Rules over a whole configuration: names, devices, addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.config.check import check
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.errors import UsageError


def server(*models: dict[str, Any], **listener: Any) -> ServerConfig:
    return ServerConfig(
        listener=ListenerConfig(**listener),
        models=tuple(ModelConfig(path=Path("m.gguf"), **values) for values in models),
    )


def test_no_model() -> None:
    with pytest.raises(UsageError, match="no model given"):
        check(server())


@pytest.mark.parametrize("first", ["a", "Zürich 7B", "org/model:tag"])
def test_different_names_pass(first: str) -> None:
    check(server({"name": first}, {"name": "b"}))


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("Qwen", "qwen"), ("luce", None)])
def test_equal_names_name_both_blocks(first: str, second: str | None) -> None:
    other = {} if second is None else {"name": second}
    with pytest.raises(UsageError, match=r"unique: block 1 \(.*\) and block 2 \(.*\)"):
        check(server({"name": first}, other))


@pytest.mark.parametrize("name", ["auto", "AUTO"])
def test_reserved_name(name: str) -> None:
    with pytest.raises(UsageError, match=r"block 2 \(auto\).* is reserved"):
        check(server({}, {"name": name.lower()}))
    with pytest.raises(UsageError, match="is reserved"):
        check(server({"name": name}))


@pytest.mark.parametrize("name", ["", " ", "a ", "\ta", "a\nb", "a\x00"])
def test_names_must_be_readable(name: str) -> None:
    with pytest.raises(UsageError, match="--model-name"):
        check(server({"name": name}))


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "cpu:12", "cuda:0", "hip:7"])
def test_devices(device: str) -> None:
    check(server({"target_device": device}))


@pytest.mark.parametrize(
    "device", ["", "auto", "gpu:0", "cuda", "hip", "cuda:", "cuda:-1", "cuda:0,cuda:1", "CPU:0 "]
)
def test_unknown_devices(device: str) -> None:
    with pytest.raises(UsageError, match=r"block 2 \(b\): --target-device .* none of cpu, cpu:N"):
        check(server({}, {"name": "b", "target_device": device}))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "localhost", "my-host.example"])
def test_hosts(host: str) -> None:
    check(server({}, host=host))


@pytest.mark.parametrize("host", ["", "999.1.1.1", "1.2.3", "a b", "höst", "a\n"])
def test_no_hosts(host: str) -> None:
    with pytest.raises(UsageError, match="--host"):
        check(server({}, host=host))


def test_unused_blocks_are_checked_too() -> None:
    with pytest.raises(UsageError, match="block 3"):
        check(server({}, {"name": "b"}, {"name": "c", "target_device": "tpu:0"}))
