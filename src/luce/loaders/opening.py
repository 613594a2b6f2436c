"""Opens a model path, whatever it is: a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from luce.errors import ModelFileError
from luce.loaders.checkpoint import Checkpoint, Container, TextMetadata
from luce.loaders.expected_tensors import check_tensors
from luce.loaders.gguf_hparams import gguf_hparams
from luce.loaders.gguf_split import GgufModel
from luce.loaders.gguf_text import gguf_name, gguf_text_metadata
from luce.loaders.hf_hparams import hf_hparams
from luce.loaders.hf_text import hf_text_metadata
from luce.loaders.hparams import HParams
from luce.loaders.json_file import read_json_object
from luce.loaders.mapped import MappedTensors, unreadable
from luce.loaders.safetensors import SafetensorsModel
from luce.loaders.unused import drop_unused, unused_notice

_log = logging.getLogger(__name__)


def model_container(path: Path) -> Container:
    """Which kind of model a path is, by what is there.

    Raises:
        ModelFileError: nothing is there, or nothing that could be a model.
    """
    try:
        # Not `is_dir` and `exists`: to them a link that leads in circles is nothing at all.
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        has_config = is_folder and "config.json" in os.listdir(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not is_folder and path.suffix == ".safetensors":
        raise ModelFileError(
            f"{path}: name the folder that holds this file and its config.json instead"
        )
    if is_folder and not has_config:
        raise ModelFileError(
            f"{path}: is a folder without config.json; a model is a .gguf file or a Hugging Face "
            "folder"
        )
    return "safetensors" if is_folder else "gguf"


def model_name(path: Path) -> str:
    """A model's name by its own metadata; nothing else of it is checked.

    Raises:
        ModelFileError: it cannot be read.
    """
    if model_container(path) == "gguf":
        with contextlib.closing(GgufModel(path)) as model:
            return gguf_name(model)
    return path.resolve().name


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model for computing: every tensor is known to be there, whole and of a known type.

    The map lives as long as the returned `tensors` or a view of them.

    Args:
        path: a GGUF file (any one of a split) or a Hugging Face folder.

    Raises:
        ModelFileError: with the file, the key or tensor, what is needed and what is there.
    """
    if model_container(path) == "gguf":
        model, hparams, unused = _open_gguf(path)
        _tell_unused(path, unused)
        return Checkpoint(
            container="gguf",
            architecture=hparams.architecture,
            name=gguf_name(model),
            hparams=hparams,
            tensors=model.tensors,
            file_bytes=model.file_bytes,
        )
    folder, hparams, unused = _open_folder(path, read_json_object(path / "config.json"))
    _tell_unused(path, unused)
    return Checkpoint(
        container="safetensors",
        architecture=hparams.architecture,
        name=path.resolve().name,
        hparams=hparams,
        tensors=folder.tensors,
        file_bytes=folder.file_bytes,
    )


def read_text_metadata(path: Path) -> TextMetadata:
    """Read what the listener needs, after the same checks as `open_checkpoint`.

    Only headers are touched and no map outlives the call, so it costs the process little more
    memory than the vocabulary itself.

    Raises:
        ModelFileError: as `open_checkpoint`, or the tokenizer is missing.
    """
    if model_container(path) == "gguf":
        model, hparams, _ = _open_gguf(path)
        with contextlib.closing(model):
            types = _weight_types(model.tensors)
            return replace(gguf_text_metadata(model, hparams), weight_types=types)
    config = read_json_object(path / "config.json")
    folder, hparams, _ = _open_folder(path, config)
    types = _weight_types(folder.tensors)
    folder.close()
    return replace(hf_text_metadata(path, config, hparams), weight_types=types)


def _weight_types(tensors: MappedTensors) -> dict[str, int]:
    """Bytes of each type, the largest first."""
    sizes: Counter[str] = Counter()
    for meta in tensors.metas():
        sizes[meta.type] += meta.nbytes
    return dict(sizes.most_common())


def _tell_unused(path: Path, unused: Counter[str]) -> None:
    if unused:
        fields = {"path": str(path), "skipped": unused_notice(unused)}
        _log.info("parts of the model are not used", extra=fields)


def _open_gguf(path: Path) -> tuple[GgufModel, HParams, Counter[str]]:
    model = GgufModel(path)
    try:
        hparams = gguf_hparams(model)
        unused = drop_unused("gguf", hparams, model.tensors)
        check_tensors("gguf", hparams, model.tensors, model.path)
    except BaseException:
        model.close()
        raise
    return model, hparams, unused


def _open_folder(
    path: Path, config: dict[str, Any]
) -> tuple[SafetensorsModel, HParams, Counter[str]]:
    hparams = hf_hparams(config, path / "config.json")
    model = SafetensorsModel(path)
    try:
        unused = drop_unused("safetensors", hparams, model.tensors)
        check_tensors("safetensors", hparams, model.tensors, path)
    except BaseException:
        model.close()
        raise
    return model, hparams, unused
