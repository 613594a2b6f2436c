"""Two models take turns on a device, behind HTTP: what a client that names the absent one waits.

    PYTHONPATH=src:. python -m bench.serving.turns MODEL [--device cuda:0] [--turns 10]
    PYTHONPATH=src:. python -m bench.serving.turns --size 8B --folder DIR [--device cuda:0]

The second writes a model of random weights of that shape there. Both names are of the same model.
A request is for 8 tokens; its time is from sending to the whole answer. Swaps' times are the
server's own: out, and in again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from bench.serving.servers import Server, start_luce

NAMES = ("a", "b")


def call(server: Server, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON answer; with a body, to a POST."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{path}: {error.code} {error.read().decode()}") from error
    return found


def ask(server: Server, name: str, words: int) -> tuple[float, str]:
    """Seconds of a request, and its text."""
    text = " ".join(f"number {index}" for index in range(words))
    body = {
        "model": name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    began = time.perf_counter()
    answer = call(server, "/v1/chat/completions", body)
    assert answer["model"] == name, answer["model"]
    return time.perf_counter() - began, answer["choices"][0]["message"]["content"]


def swap_of(server: Server, name: str) -> tuple[float, float]:
    """Milliseconds that the last eviction of the others, and the last return of a model, took."""
    models = {each["id"]: each for each in call(server, "/status/json")["models"]}
    gone = next(each for each in NAMES if each != name)
    return models[gone]["last_evict_ms"], models[name]["last_reinstate_ms"]


def run(server: Server, turns: int, words: int) -> None:
    """Ask for each in turn, and print."""
    first = {name: ask(server, name, words)[1] for name in NAMES}
    stays = []
    for _ in range(3):
        # The next swap waits for who has only just finished: not part of a request's own time.
        seconds, text = ask(server, NAMES[-1], words)
        assert text == first[NAMES[-1]]
        stays.append(seconds)
    waits, outs, ins, others = [], [], [], 0
    for turn in range(turns):
        name = NAMES[turn % 2]
        time.sleep(0.1)
        seconds, text = ask(server, name, words)
        out_ms, in_ms = swap_of(server, name)
        print(f"  to {name}: {seconds:.3f} s, out {out_ms:.0f} ms, in {in_ms:.0f} ms", flush=True)
        waits.append(seconds)
        outs.append(out_ms)
        ins.append(in_ms)
        others += text != first[name]
    swap = statistics.median(map(sum, zip(outs, ins, strict=True)))
    print(
        f"request with a switch: median {statistics.median(waits):.3f} s, worst {max(waits):.3f}; "
        f"without {statistics.median(stays):.3f} s; swap: median {swap:.0f} ms; "
        f"answers that were others: {others}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--size", default="8B")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=50)
    options = parser.parse_args()
    model = options.model
    if model is None:
        if options.folder is None:
            parser.error("name a model, or a --folder to write one to")
        from bench.engine.end_to_end import config_of, write_model

        model = options.folder
        write_model(model, config_of(options.size, None))
    block = ("--target-device", options.device, "--max-ctx", "4096", "--max-concurrency", "16")
    server = start_luce(
        model, "--model-name", NAMES[0], *block,
        "--model", str(model), "--model-name", NAMES[1], *block,
        "--model-routing", "name", "--swap-residency",
    )  # fmt: skip
    try:
        run(server, options.turns, options.words)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
