"""Runs `serve` with scripted workers as a process of its own; started by the tests beside it.

Arguments: one JSON object with `listener` (options), `models` (path, name) and `script`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.errors import StartupError
from luce.listener.server import serve
from luce.workers.spawn import ProcessLauncher


def main() -> int:
    setup = json.loads(sys.argv[1])
    models = tuple(
        ModelConfig(path=Path(model["path"]), name=model["name"]) for model in setup["models"]
    )
    config = ServerConfig(listener=ListenerConfig(port=0, **setup["listener"]), models=models)
    arguments = ("-m", "luce.testing.fake_worker", "--script", json.dumps(setup["script"]))
    try:
        code = serve(config, ProcessLauncher(arguments=arguments))
    except StartupError as error:
        print(f"luce_server: {error}", file=sys.stderr)
        return error.exit_code
    heavy = {"torch", "transformers"} & set(sys.modules)
    print(f"heavy modules: {sorted(heavy)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
