"""`luce inspect`: what a model file or folder says about itself, servable or not."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from luce.cli.rich_output import print_rich
from luce.cli.visible import visible
from luce.errors import ModelFileError
from luce.loaders.checkpoint import Container, TensorMeta
from luce.loaders.expected_tensors import check_tensors
from luce.loaders.gguf_hparams import gguf_hparams
from luce.loaders.gguf_split import GgufModel
from luce.loaders.gguf_text import gguf_name, gguf_text_metadata
from luce.loaders.hf_hparams import hf_hparams, text_keys
from luce.loaders.hf_text import hf_text_metadata
from luce.loaders.hparams import HParams
from luce.loaders.json_file import read_json_object
from luce.loaders.linear_attention import layer_pattern
from luce.loaders.mapped import MappedTensors
from luce.loaders.opening import model_container
from luce.loaders.safetensors import SafetensorsModel
from luce.loaders.unused import drop_unused, unused_notice
from luce.sizing.geometry import kv_spec, state_spec
from luce.text.bundle import TextBundle
from luce.units import format_bytes

_ELEMENT_BYTES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class TypeSummary:
    """All tensors of one storage type together."""

    tensors: int
    elements: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class LayerSummary:
    """What a servable model's layers are and keep, in numbers of 16 bits."""

    pattern: str
    kv_bytes_per_token: int
    state_bytes_per_sequence: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSummary:
    """What `luce inspect` shows.

    Attributes:
        problem: why luce cannot serve it, or None.
        hparams: typed ones if the model can be served, else what the file says.
        vocab_tokens: entries of the tokenizer's vocabulary, or None without one.
        layers: None if the hyper-parameters are not understood.
        unused: parts of the file that are not loaded, for people; may be empty.
    """

    path: str
    container: Container
    name: str
    architecture: str
    problem: str | None
    file_bytes: int
    num_tensors: int
    parameters: int
    types: dict[str, TypeSummary]
    tokenizer: str | None
    vocab_tokens: int | None
    chat_template: bool
    context_length: int | None
    hparams: dict[str, Any]
    layers: LayerSummary | None
    unused: str


def inspect(path: Path, as_json: bool) -> int:
    """Print a summary of a model; a model luce cannot serve is described all the same.

    Raises:
        ModelFileError: the file cannot be read at all.
    """
    summary = summarize(path)
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), indent=2, ensure_ascii=False))
    else:
        _print_tables(summary)
    return 0


def summarize(path: Path) -> ModelSummary:
    """Read a model's headers and metadata.

    Raises:
        ModelFileError: the file cannot be read at all.
    """
    return _summarize_gguf(path) if model_container(path) == "gguf" else _summarize_folder(path)


def _summarize_gguf(path: Path) -> ModelSummary:
    with contextlib.closing(GgufModel(path)) as model:
        metadata = model.metadata
        problem, hparams, unused = None, None, Counter[str]()
        sizes = _sizes(path, model.tensors, model.file_bytes)
        try:
            hparams = gguf_hparams(model)
            unused = drop_unused("gguf", hparams, model.tensors)
            check_tensors("gguf", hparams, model.tensors, model.path)
            TextBundle.from_metadata(gguf_text_metadata(model, hparams), path)
        except ModelFileError as error:
            problem = str(error)
        architecture = _text(metadata.get("general.architecture")) or "unknown"
        kinds = [_text(metadata.get(f"tokenizer.ggml.{key}")) for key in ("model", "pre")]
        return ModelSummary(
            container="gguf",
            name=gguf_name(model),
            architecture=architecture,
            problem=problem,
            tokenizer=" / ".join(kind for kind in kinds if kind is not None) or None,
            vocab_tokens=metadata.length("tokenizer.ggml.tokens"),
            chat_template="tokenizer.chat_template" in metadata,
            context_length=_whole(metadata.get(f"{architecture}.context_length")),
            hparams=_hparams_or(hparams, metadata, f"{architecture}."),
            layers=_layers(hparams),
            unused=unused_notice(unused),
            **sizes,
        )


def _summarize_folder(path: Path) -> ModelSummary:
    source = path / "config.json"
    config = read_json_object(source)
    with contextlib.closing(SafetensorsModel(path)) as model:
        problem, hparams, text, unused = None, None, None, Counter[str]()
        sizes = _sizes(path, model.tensors, model.file_bytes)
        try:
            hparams = hf_hparams(config, source)
            unused = drop_unused("safetensors", hparams, model.tensors)
            check_tensors("safetensors", hparams, model.tensors, path)
            text = hf_text_metadata(path, config, hparams)
            TextBundle.from_metadata(text, path)
        except ModelFileError as error:
            problem = str(error)
        kind, num_tokens = _folder_tokenizer(path / "tokenizer.json")
        return ModelSummary(
            container="safetensors",
            name=path.resolve().name,
            architecture=_text(config.get("model_type")) or "unknown",
            problem=problem,
            tokenizer=kind,
            vocab_tokens=num_tokens,
            chat_template=text is not None and text.chat_template is not None,
            context_length=_whole(text_keys(config).get("max_position_embeddings")),
            hparams=_hparams_or(hparams, config, ""),
            layers=_layers(hparams),
            unused=unused_notice(unused),
            **sizes,
        )


def _layers(hparams: HParams | None) -> LayerSummary | None:
    if hparams is None:
        return None
    state = state_spec(hparams, _ELEMENT_BYTES)
    return LayerSummary(
        pattern=layer_pattern(hparams),
        kv_bytes_per_token=kv_spec(hparams, 1, _ELEMENT_BYTES).bytes_per_token,
        state_bytes_per_sequence=0 if state is None else state.bytes_per_slot,
    )


def _folder_tokenizer(path: Path) -> tuple[str | None, int | None]:
    if not path.exists():
        return None, None
    model = read_json_object(path).get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    return f"tokenizer.json / {kind}", len(vocab) if isinstance(vocab, dict | list) else None


def _sizes(path: Path, tensors: MappedTensors, file_bytes: int) -> dict[str, Any]:
    types = _type_summaries(tensors.metas())
    return {
        "path": str(path),
        "file_bytes": file_bytes,
        "num_tensors": len(tensors),
        "parameters": sum(kind.elements for kind in types.values()),
        "types": types,
    }


def _type_summaries(metas: Iterable[TensorMeta]) -> dict[str, TypeSummary]:
    groups: dict[str, list[TensorMeta]] = defaultdict(list)
    for meta in metas:
        groups[meta.type].append(meta)
    summaries = {
        name: TypeSummary(
            tensors=len(group),
            elements=sum(math.prod(meta.shape) for meta in group),
            nbytes=sum(meta.nbytes for meta in group),
        )
        for name, group in groups.items()
    }
    return dict(sorted(summaries.items(), key=lambda item: -item[1].nbytes))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _hparams_or(hparams: HParams | None, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The typed hyper-parameters, or the plain values the file gives under `prefix`."""
    if hparams is not None:
        return dataclasses.asdict(hparams)
    plain = {key: values[key] for key in values if key.startswith(prefix)}
    return {
        key.removeprefix(prefix): value
        for key, value in plain.items()
        if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    }


def _print_tables(summary: ModelSummary) -> None:
    facts = [f"[bold]{label:<14}[/bold] {_safe(value)}" for label, value in _facts(summary)]
    types = Table("type", title="Tensors", title_justify="left")
    for heading in ("tensors", "parameters", "size"):
        types.add_column(heading, justify="right")
    for name, kind in summary.types.items():
        types.add_row(name, str(kind.tensors), f"{kind.elements:,}", format_bytes(kind.nbytes))
    hparams = Table("key", "value", title="Hyper-parameters", title_justify="left")
    for key, value in summary.hparams.items():
        hparams.add_row(_safe(key), _safe(str(value)))
    print_rich(*facts, types, hparams)


def _safe(text: str) -> str:
    return escape(visible(text))


def _facts(summary: ModelSummary) -> list[tuple[str, str]]:
    vocab = "" if summary.vocab_tokens is None else f", {summary.vocab_tokens:,} tokens"
    context = summary.context_length
    return [
        ("path", summary.path),
        ("name", summary.name),
        ("container", summary.container),
        ("architecture", summary.architecture),
        ("parameters", f"{summary.parameters:,} in {summary.num_tensors} tensors"),
        ("size", format_bytes(summary.file_bytes)),
        ("context", "unknown" if context is None else f"{context:,} tokens"),
        ("tokenizer", (summary.tokenizer or "none") + vocab),
        ("chat template", "yes" if summary.chat_template else "no"),
        *_layer_facts(summary),
        ("servable", "yes" if summary.problem is None else f"no: {summary.problem}"),
    ]


def _layer_facts(summary: ModelSummary) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if summary.layers is not None:
        kept = f"{format_bytes(summary.layers.kv_bytes_per_token)} a token"
        if summary.layers.state_bytes_per_sequence:
            kept += f", {format_bytes(summary.layers.state_bytes_per_sequence)} a sequence"
        facts += [("layers", summary.layers.pattern), ("keeps", f"{kept} (16 bit)")]
    if summary.unused:
        facts.append(("not loaded", summary.unused))
    return facts
