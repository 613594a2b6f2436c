"""A model of a real shape on disk: how fast it loads, and its tokens through HTTP.

    PYTHONPATH=src:. python -m bench.engine.end_to_end --folder DIR [--size 8B] [--layers N]

Writes random bfloat16 weights and a vocabulary of made-up words (once; the file then lies in the
page cache), loads them onto the GPU, decodes with the engine alone, then serves the same folder
and streams as many chats at once. The HTTP share is of the engine's own tokens a second at the
same number of rows and about the same context.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path

import torch
from bench.engine.gpu import Streams
from bench.engine.shapes import QWEN3
from bench.serving.load import sample, unique_prompt
from bench.serving.servers import start_luce
from safetensors.torch import save_file

from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.testing.tiny_safetensors import hf_config
from luce.testing.tiny_tokenizer import CHATML_TEMPLATE, ENDOFTEXT, IM_END, tokenizer_json
from luce.testing.tiny_weights import TinyConfig, weight_shapes

PROMPT_WORDS = 100
LAYERS_A_FILE = 6


def config_of(size: str, layers: int | None) -> TinyConfig:
    """The shape as a checkpoint's configuration."""
    hidden, intermediate, all_layers, heads, kv_heads, tied = QWEN3[size]
    return TinyConfig(
        family="qwen3",
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers or all_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        context_length=8192,
        tied=tied,
    )


def write_model(folder: Path, config: TinyConfig, device: str = "cuda") -> int:
    """Write the folder, its numbers drawn on a device; returns the bytes of its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(config, "bfloat16")))
    tokenizer = tokenizer_json("qwen2")
    vocabulary = tokenizer["model"]["vocab"]
    first = 1 + max(vocabulary.values(), default=0)
    first = max([first, *(1 + token["id"] for token in tokenizer["added_tokens"])])
    vocabulary.update({f"w{index}": index for index in range(first, config.vocab_size)})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": ENDOFTEXT, "eos_token": IM_END, "chat_template": CHATML_TEMPLATE})
    )
    generator = torch.Generator(device).manual_seed(0)
    files: dict[int, dict[str, torch.Tensor]] = {}
    for name, shape in weight_shapes(config).items():
        parts = name.split(".")
        layer = int(parts[2]) if parts[1] == "layers" else 0
        values = torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)
        spread = shape[-1] ** -0.5
        values = values * 0.1 + 1 if len(shape) == 1 else values * spread
        files.setdefault(layer // LAYERS_A_FILE, {})[name] = values.cpu()
    total = 0
    for number, tensors in files.items():
        name = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        save_file(tensors, folder / name)
        total += sum(each.nbytes for each in tensors.values())
    return total


def load(folder: Path, rows: int) -> tuple[Engine, float]:
    """The engine, and seconds until its weights are on the device."""
    marks = [time.perf_counter(), 0.0]

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "weights" and done == total:
            marks[1] = time.perf_counter()

    options = EngineOptions(
        path=folder, device="cuda:0", max_concurrency=rows, max_ctx=2048, chunk=2048
    )
    engine = Engine.load(options, progress)
    return engine, marks[1] - marks[0]


def engine_rate(engine: Engine, rows: int, context: int) -> float:
    """Tokens a second of the engine alone, around this context."""
    engine.warm_up()
    streams = Streams(engine)
    streams.prefill(list(range(rows)), context, 2048)
    return rows / min(streams.decode(rows, context, 100) for _ in range(2))


def http_rate(folder: Path, rows: int, tokens: int) -> tuple[float, float]:
    """Tokens a second through HTTP while all streams decode, and from first to last byte."""
    server = start_luce(
        folder, "--target-device", "cuda:0", "--max-concurrency", str(rows), "--max-ctx", "2048",
        "--chunk", "2048", wait=True,
    )  # fmt: skip
    try:
        bodies = [
            {
                "messages": unique_prompt(PROMPT_WORDS, seed),
                "max_tokens": tokens,
                "temperature": 0,
                "logit_bias": {"0": -100, "2": -100},
            }
            for seed in range(rows)
        ]
        asyncio.run(sample(server.port, [{**each, "max_tokens": 8} for each in bodies]))
        found = asyncio.run(sample(server.port, bodies))
        assert found.completion_tokens == rows * tokens, found.completion_tokens
        return found.decode_rate, found.wall_rate
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", default="8B")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    options = parser.parse_args()
    began = time.perf_counter()
    size = write_model(options.folder, config_of(options.size, options.layers))
    torch.cuda.empty_cache()
    print(f"wrote {size / 1e9:.1f} GB in {time.perf_counter() - began:.1f} s", flush=True)
    for _ in range(2):
        engine, seconds = load(options.folder, options.streams)
        print(
            f"load {size / 1e9:.1f} GB: {seconds:.2f} s to the weights, "
            f"{size / seconds / 1e9:.2f} GB/s, {len(os.sched_getaffinity(0))} cores",
            flush=True,
        )
        if _ == 0:
            engine.close()
    # Prompts are about 640 tokens: the tokenizer has no merges.
    own = engine_rate(engine, options.streams, 640 + options.tokens // 2)
    engine.close()
    del engine
    torch.cuda.empty_cache()
    decode, wall = http_rate(options.folder, options.streams, options.tokens)
    print(
        f"{options.size} at {options.streams} streams: engine {own:.0f} tok/s, HTTP {decode:.0f} "
        f"({decode / own:.3f}); first to last byte {wall:.0f}"
    )


if __name__ == "__main__":
    main()
