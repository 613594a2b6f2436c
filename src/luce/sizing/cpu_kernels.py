"""Whether quantised matrices stay so on a CPU."""

from __future__ import annotations

from luce.engine.native.build import is_there


def keeps_tiles(dtype: str, *, on_cpu: bool, is_exact: bool) -> bool:
    """Whether a model is computed by the native kernels, as far as is known before it is loaded.

    Should their build fail, the worker takes the memory of decoded weights instead.

    Args:
        dtype: what it computes in.
        on_cpu: where.
        is_exact: activations are not to be rounded.
    """
    return on_cpu and dtype == "float32" and not is_exact and is_there()
