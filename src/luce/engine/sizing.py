"""The engine's own sizes: what `luce.sizing` computes, for a type and a device of PyTorch."""

from __future__ import annotations

import torch

from luce.engine.device import Device, dtype_name
from luce.engine.native.library import NativeLibrary, native_library
from luce.engine.options import EngineOptions
from luce.kv.spec import KVSpec
from luce.loaders.checkpoint import Checkpoint
from luce.sizing.cpu_kernels import keeps_tiles
from luce.sizing.geometry import state_spec
from luce.sizing.model_sizes import ModelGeometry, Room, Sizing, check_fits, size_model


def size_engine(
    options: EngineOptions,
    checkpoint: Checkpoint,
    spec: KVSpec,
    dtype: torch.dtype,
    device: Device,
    free: int,
) -> Sizing:
    """Resolve context and KV pool.

    Args:
        options: what was asked for.
        checkpoint: the model's headers.
        spec: what the model keeps per token.
        dtype: what it computes in.
        device: where it goes.
        free: bytes the device has free.

    Raises:
        ModelFileError: the model's context holds no prompt with an answer.
        UsageError: the context asked for is longer than the model's, or it or the pool is too
            small.
        PlacementError: it does not fit; the message says what is needed and what is free.
    """
    name = dtype_name(dtype)
    geometry = ModelGeometry(
        checkpoint=checkpoint,
        dtype=name,
        kv=spec,
        state=state_spec(checkpoint.hparams, dtype.itemsize),
        num_checkpoints=options.num_checkpoints,
        is_tiled=keeps_tiles(name, on_cpu=device.is_cpu, is_exact=options.cpu_exact)
        and isinstance(native_library(), NativeLibrary),
    )
    room = Room(device.name, device.is_cpu, free)
    sizing = size_model(options, geometry, room)
    check_fits(sizing, room)
    return sizing
