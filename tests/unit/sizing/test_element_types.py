from __future__ import annotations

import pytest

from luce.errors import UsageError
from luce.sizing.element_types import ELEMENT_BYTES, KV_TYPE_OF, resolve_dtype_name


def test_auto_is_by_device() -> None:
    assert resolve_dtype_name("auto", on_cpu=True) == "float32"
    assert resolve_dtype_name("auto", on_cpu=False) == "bfloat16"
    assert resolve_dtype_name("float16", on_cpu=True) == "float16"


def test_unknown() -> None:
    with pytest.raises(UsageError, match="unknown dtype 'int8'; use auto, float32"):
        resolve_dtype_name("int8", on_cpu=True)


def test_the_cache_knows_every_type() -> None:
    assert set(KV_TYPE_OF) == set(ELEMENT_BYTES)
