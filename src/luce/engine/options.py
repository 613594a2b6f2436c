"""What an engine is asked for, and what it came out as."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.kv.spec import KVSpec, StateSpec


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
        cache_type_k: what keys are stored as: "auto" (as the model computes), "f32", "f16",
            "bf16", "q8_0" or "q4_0".
        cache_type_v: likewise of values.
        cpu_exact: on a CPU, decode weights to float32 instead of rounding activations to 15 bits.
        num_checkpoints: slots beside the rows' for saved recurrent states; only models that have
            such states take memory for them.
        takes_turns: the model will leave its device and come back, again and again: on a GPU its
            memory is taken such that captured steps outlive that.
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
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"
    num_checkpoints: int = 0
    cpu_exact: bool = False
    takes_turns: bool = False

    @property
    def captured_chunk(self) -> int:
        """Most prompt tokens of a captured step; 0: none has prompts.

        Captured steps of a model that takes turns stay on the device, with all the memory for
        their intermediate results.
        """
        return 0 if self.takes_turns else self.chunk


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's resolved geometry.

    Attributes:
        architecture: "llama", "qwen2", "qwen3".
        device: "cpu:0", "cuda:0", "hip:0".
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
        layer_pattern: its layers' kinds, for people.
        kv: what a token keeps in layers of full attention.
        state: what a sequence keeps in recurrent layers, None for a model without them.
        num_checkpoints: states that can be saved beside the rows'; 0 without such layers.
        state_bytes: recurrent states of rows and checkpoints.
        num_layers: blocks.
        hidden_size: numbers of a token's hidden state.
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
    layer_pattern: str = ""
    kv: KVSpec | None = None
    state: StateSpec | None = None
    num_checkpoints: int = 0
    state_bytes: int = 0
    num_layers: int = 0
    hidden_size: int = 0
