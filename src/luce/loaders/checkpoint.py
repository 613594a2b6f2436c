"""A model on disk, whatever its container: metadata, hyper-parameters and raw tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from luce.loaders.hparams import HParams

Container = Literal["gguf", "safetensors"]


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """One stored tensor.

    Attributes:
        name: as in the file.
        type: "F32", "F16", "BF16", "Q4_1", ... (GGUF spelling for both containers).
        shape: torch order (outermost first), in elements.
        nbytes: stored bytes.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int


class TensorSource(Protocol):
    """Tensors of a checkpoint, memory-mapped and read-only."""

    def names(self) -> Iterator[str]:
        """All names, in file order."""

    def meta(self, name: str) -> TensorMeta:
        """Raises: KeyError if there is no such tensor."""

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes as a flat view of the map: no copy."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model.

    Attributes:
        container: which file kind it came from; decides tensor names and row layouts.
        architecture: "llama", "qwen2", "qwen3".
        name: human name from the metadata, or the file's stem.
        hparams: typed hyper-parameters.
        tensors: the stored tensors.
        file_bytes: size of all files together.
    """

    container: Container
    architecture: str
    name: str
    hparams: HParams
    tensors: TensorSource
    file_bytes: int


@dataclass(frozen=True, slots=True)
class TextMetadata:
    """What the listener needs of a model: vocabulary, template, defaults. Never weights.

    Exactly one of `gguf_vocab` (the `tokenizer.ggml.*` keys) and `tokenizer_json` (path) is set.

    Attributes:
        chat_template: Jinja source, or None when the file has none.
        context_length: the model's trained context.
        vocab_size: rows of the embedding; may exceed the tokenizer's length.
        eos_token_ids: from the metadata or generation_config; more end markers are added by text.
        bos_token: text of the begin token, or None.
        eos_token: text of the end token, or None.
        add_bos: whether a raw prompt begins with the begin token.
        generation_defaults: temperature, top_p, ... from generation_config.json; may be empty.
        weight_types: bytes of the stored tensors of each type, in the file's names of types.
    """

    container: Container
    architecture: str
    name: str
    context_length: int
    vocab_size: int
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool = False
    gguf_vocab: dict[str, Any] | None = None
    tokenizer_json: str | None = None
    generation_defaults: dict[str, float] = field(default_factory=dict)
    weight_types: dict[str, int] = field(default_factory=dict)
