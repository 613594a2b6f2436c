"""What a plan depends on, as far as it stands in files and options."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from luce import __version__
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.gguf_split import split_paths
from luce.loaders.mapped import unreadable
from luce.placement.devices import Device
from luce.placement.memory_plan import PlanIdentity
from luce.protocol.messages import LoadSpec

log = logging.getLogger(__name__)

MEMORY_OPTIONS = (
    "block_tokens",
    "cache_type_k",
    "cache_type_v",
    "chunk",
    "cpu_exact",
    "dtype",
    "kv_pool_tokens",
    "max_concurrency",
    "max_ctx",
    "prefix_cache",
    "prefix_snapshot_bytes",
)
"""The fields of `LoadSpec` that change how much memory is taken."""


def plan_identity(checkpoint: Checkpoint, spec: LoadSpec, device: Device) -> PlanIdentity:
    """The identity of a plan for this model, these options, this device.

    Raises:
        ModelFileError: a file went away meanwhile.
    """
    return PlanIdentity(
        files=_files_digest(checkpoint, Path(spec.path)),
        options=tuple((name, str(getattr(spec, name))) for name in MEMORY_OPTIONS),
        device_uuids=(device.uuid,),
        version=__version__,
    )


def _files_digest(checkpoint: Checkpoint, path: Path) -> str:
    """Over every file's size and time of change, and everything the headers say of tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for file in _files(checkpoint, path):
        try:
            status = file.stat()
        except OSError as error:
            raise unreadable(file, error) from error
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update(repr(checkpoint.hparams).encode())
    for name in checkpoint.tensors.names():
        digest.update(repr(checkpoint.tensors.meta(name)).encode())
    return digest.hexdigest()


def _files(checkpoint: Checkpoint, path: Path) -> Iterator[Path]:
    if checkpoint.container == "gguf":
        yield from split_paths(path)
    else:
        yield path / "config.json"
        yield from sorted(path.glob("*.safetensors"))
