"""The whole listener in its own process, in front of scripted workers in theirs.

python -m bench.serving.scripted SETUP: a JSON object with `listener` (options), `path` (the
model whose tokenizer and template are used) and `scripts` (one `FakeScript` for each model).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.serving.servers import Server, wait_ready
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.listener.server import serve
from luce.testing.fake_script import FakeScript
from luce.testing.scripted_launcher import ScriptedLauncher


def start_scripted(path: Path, *scripts: FakeScript, **listener: Any) -> Server:
    """Start the listener with one scripted worker for each script; returns when it serves."""
    setup = {"listener": listener, "path": str(path), "scripts": scripts}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.serving.scripted", msgspec.json.encode(setup)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://[\d.]+:(\d+)", line):
            server = Server(process, int(match[1]))
            wait_ready(server)
            return server
    raise RuntimeError("the listener ended before it listened")


def main() -> int:
    setup = msgspec.json.decode(sys.argv[1])
    scripts = {
        f"model-{index}": msgspec.convert(script, FakeScript)
        for index, script in enumerate(setup["scripts"])
    }
    models = tuple(ModelConfig(path=Path(setup["path"]), name=name) for name in scripts)
    config = ServerConfig(listener=ListenerConfig(port=0, **setup["listener"]), models=models)
    return serve(config, ScriptedLauncher(scripts))


if __name__ == "__main__":
    sys.exit(main())
