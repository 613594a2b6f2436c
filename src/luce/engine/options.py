"""What an engine is asked for, and what it came out as."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What to load and how large; `None` = from the file or the machine.

    Attributes:
        path: GGUF file or Hugging Face folder.
        device: "cpu", "cpu:N", "cuda:N" or "hip:N".
        dtype: "auto" (float32 on a CPU, bfloat16 on a GPU), "float32", "bfloat16" or "float16".
        threads: CPU threads; default: the cores this process may use.
        max_ctx: longest sequence in tokens; default: the model's context, at most 8192.
        max_concurrency: rows: sequences that may run at the same time.
        kv_pool_tokens: KV cache shared by the rows; default: `max_ctx * max_concurrency`, as far
            as a quarter of the free memory goes.
        chunk: most tokens of one prompt computed in a step; sizes the scratch memory.
        block_tokens: tokens of a KV block.
    """

    path: Path
    device: str = "cpu"
    dtype: str = "auto"
    threads: int | None = None
    max_ctx: int | None = None
    max_concurrency: int = 4
    kv_pool_tokens: int | None = None
    chunk: int = 512
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's resolved geometry.

    Attributes:
        architecture: "llama", "qwen2", "qwen3".
        device: "cpu", "cuda:0", "hip:0".
        dtype: "float32", "bfloat16" or "float16".
        max_ctx: longest sequence in tokens.
        kv_pool_tokens: tokens the KV cache holds.
        num_blocks: KV blocks, null block 0 included.
        block_tokens: tokens of a block.
        max_rows: rows.
        weights_bytes: parameters on the device.
        kv_bytes: KV cache on the device; on a CPU committed as it is used.
        vocab_size: logits per token.
        kernels: the implementation chosen for each operation, as "linear=onednn".
    """

    architecture: str
    device: str
    dtype: str
    max_ctx: int
    kv_pool_tokens: int
    num_blocks: int
    block_tokens: int
    max_rows: int
    weights_bytes: int
    kv_bytes: int
    vocab_size: int
    kernels: tuple[str, ...] = ()
