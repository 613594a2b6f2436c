"""CUDA's descriptions of tensors, from which a kernel copies boxes to swizzled shared memory.

Structure and numbers: `cuda.h`, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

import ctypes
import functools

import torch

_TYPES = {torch.float16: 6, torch.bfloat16: 9}
_WORDS, _ALIGNMENT = 16, 64
_SWIZZLE_128_BYTES, _PROMOTE_256_BYTES = 3, 3
_LIBRARY = "libcuda.so.1"


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise RuntimeError(f"CUDA's driver cannot be loaded: {error}") from error


def tensor_map(tensor: torch.Tensor, box: tuple[int, ...]) -> ctypes.Array[ctypes.c_uint64]:
    """`encode_tensor_map` by CUDA's driver.

    Raises:
        RuntimeError: there is none, or it does not take the tensor.
    """
    return encode_tensor_map(_driver(), tensor, box)


def encode_tensor_map(
    driver: ctypes.CDLL, tensor: torch.Tensor, box: tuple[int, ...]
) -> ctypes.Array[ctypes.c_uint64]:
    """Describe a tensor and the boxes of it that are copied, their rows swizzled.

    Args:
        driver: CUDA's library.
        tensor: float16 or bfloat16; its last axis is contiguous, the others' strides are
            multiples of 16 bytes.
        box: size along each axis; the last, in bytes, is 128.

    Returns:
        What a kernel takes as `const __grid_constant__` of 128 bytes.

    Raises:
        RuntimeError: the driver does not take it.
    """
    rank = tensor.dim()
    room = (ctypes.c_uint64 * (2 * _WORDS))()
    made = (ctypes.c_uint64 * _WORDS).from_buffer(room, -ctypes.addressof(room) % _ALIGNMENT)
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()[:-1]]
    status = driver.cuTensorMapEncodeTiled(
        ctypes.byref(made),
        _TYPES[tensor.dtype],
        ctypes.c_uint32(rank),
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*reversed(tensor.shape)),
        (ctypes.c_uint64 * (rank - 1))(*reversed(strides)),
        (ctypes.c_uint32 * rank)(*reversed(box)),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        _SWIZZLE_128_BYTES,
        _PROMOTE_256_BYTES,
        0,
    )
    if status:
        raise RuntimeError(f"a tensor could not be described for copies: CUDA error {status}")
    return made
