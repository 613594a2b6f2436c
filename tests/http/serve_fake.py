"""Runs `serve` with scripted workers as a process of its own; started by the tests beside it.

Arguments: one JSON object with `listener` and `routing` (options), `models` (path, name, and a
`script` if it has its own), `script`, and maybe `drain_patience_s`, of a gateway. With `words` the
configuration is that of a command line, and `models` has but names and scripts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.config.routing import RoutingConfig
from luce.errors import StartupError
from luce.listener import gateway
from luce.listener.server import serve
from luce.testing.fake_script import FakeScript
from luce.testing.scripted_launcher import ScriptedLauncher


def _path(_kind: type, text: str) -> Path:
    return Path(text)


def _config(setup: dict[str, Any]) -> ServerConfig:
    if "words" in setup:
        return resolve(read_launch(setup["words"])).config
    models = tuple(
        ModelConfig(path=Path(model["path"]), name=model["name"]) for model in setup["models"]
    )
    listener = msgspec.convert({"port": 0, **setup["listener"]}, ListenerConfig, dec_hook=_path)
    routing = msgspec.convert(setup.get("routing", {}), RoutingConfig, dec_hook=_path)
    return ServerConfig(listener=listener, models=models, routing=routing)


def main() -> int:
    setup = json.loads(sys.argv[1])
    config = _config(setup)
    scripts = {
        model["name"]: msgspec.convert({**setup["script"], **model.get("script", {})}, FakeScript)
        for model in setup["models"]
    }
    gateway.DRAIN_PATIENCE_S = setup.get("drain_patience_s", gateway.DRAIN_PATIENCE_S)
    try:
        code = serve(config, ScriptedLauncher(scripts))
    except StartupError as error:
        print(f"luce_server: {error}", file=sys.stderr)
        return error.exit_code
    heavy = {"torch", "transformers"} & set(sys.modules)
    print(f"heavy modules: {sorted(heavy)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
