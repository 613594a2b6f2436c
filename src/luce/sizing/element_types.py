"""The types weights are held and computed in, by name."""

from __future__ import annotations

from luce.errors import UsageError
from luce.kv.spec import KVType

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number of each type a model may compute in."""

KV_TYPE_OF: dict[str, KVType] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""What the KV cache calls them."""

AUTO = "auto"


def resolve_dtype_name(text: str, *, on_cpu: bool) -> str:
    """The type meant by `--dtype`: "auto" is float32 on a CPU and bfloat16 on a GPU.

    Raises:
        UsageError: the name is unknown.
    """
    if text == AUTO:
        return "float32" if on_cpu else "bfloat16"
    if text not in ELEMENT_BYTES:
        raise UsageError(f"unknown dtype {text!r}; use {AUTO}, {', '.join(ELEMENT_BYTES)}")
    return text
