"""What keys and values are stored as: what was asked for, against what the model allows."""

from __future__ import annotations

import torch

from luce.engine.device import dtype_name
from luce.engine.options import EngineOptions
from luce.kv.spec import KVSpec
from luce.sizing import geometry
from luce.sizing.element_types import KV_TYPE_OF


def typed_spec(spec: KVSpec, options: EngineOptions, dtype: torch.dtype) -> KVSpec:
    """The geometry with the types asked for; those the model computes in anyway are left out.

    Raises:
        UsageError: a type is unknown, or the heads do not fill its groups.
    """
    return geometry.typed_spec(spec, options, KV_TYPE_OF[dtype_name(dtype)])
