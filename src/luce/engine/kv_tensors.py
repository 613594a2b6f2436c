"""The KV cache's tensors, in the geometry of a `KVSpec`."""

from __future__ import annotations

import torch

from luce.engine.cache_memory import Zeros, fresh_zeros
from luce.engine.ops.kv_cache import CachePart, KVCache, TypedCache
from luce.kv.spec import KV_GROUP, KVSpec, KVType

_DATA: dict[KVType, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "q8_0": torch.int8,
    "q4_0": torch.uint8,
}


class KVTensors:
    """Keys and values of all layers.

    On a CPU the memory comes zeroed from the system and is committed page by page as blocks are
    first written, so a large pool costs nothing until it is used.

    Args:
        spec: the geometry.
        num_blocks: N.
        dtype: of the elements.
        device: where.
        zeros: takes the memory.

    Attributes:
        layers: per layer a tensor [N, P, 2, K, D]: block, token in the block, key or value; or,
            where the spec names types, a typed cache.
        blocks: the same memory as bytes, u8 [L, N, bytes]: a block's in each layer lie together.
        nbytes: address space taken.
    """

    _by_head = False

    def __init__(
        self,
        spec: KVSpec,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        zeros: Zeros = fresh_zeros,
    ) -> None:
        assert dtype.itemsize == spec.element_bytes
        shape = (
            spec.num_layers,
            num_blocks,
            spec.block_tokens,
            2,
            spec.num_kv_heads,
            spec.head_dim,
        )
        if self._by_head:
            layers, blocks, tokens, parts, heads, dim = shape
            shape = (layers, blocks, parts, heads, tokens, dim)
        store = zeros(shape, dtype, device)
        seen = store.permute(0, 1, 4, 2, 3, 5) if self._by_head else store
        self.layers: tuple[KVCache, ...] = tuple(seen.unbind(0))
        self.blocks = _block_bytes(store)
        self.nbytes = store.numel() * dtype.itemsize
        assert self.nbytes == spec.bytes_per_block * num_blocks


class HeadMajorKVTensors(KVTensors):
    """The same, with a block's memory head by head, [2, K, P, D].

    What one program of a GPU's attention reads then lies together. The layers' shape is the same,
    their strides are not.
    """

    _by_head = True


class TypedKVTensors(KVTensors):
    """The same in the types the spec names, head by head inside a block.

    A block's memory: data of keys, data of values, scales of keys, scales of values.
    """

    def __init__(
        self,
        spec: KVSpec,
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        zeros: Zeros = fresh_zeros,
    ) -> None:
        del dtype  # the spec says it
        layer_bytes = spec.bytes_per_block // spec.num_layers
        shape = (spec.num_layers, num_blocks, layer_bytes)
        store = zeros(shape, torch.uint8, device)
        self.layers = tuple(_typed_layer(layer, spec) for layer in store.unbind(0))
        self.blocks = store
        self.nbytes = store.numel()
        assert self.nbytes == spec.bytes_per_block * num_blocks


def kv_tensors(
    spec: KVSpec,
    num_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
    zeros: Zeros = fresh_zeros,
    *,
    by_head: bool,
) -> KVTensors:
    """The tensors of a spec; `by_head` is the layout for a GPU's attention."""
    kind: type[KVTensors] = HeadMajorKVTensors if by_head else KVTensors
    if spec.key_type is not None:
        kind = TypedKVTensors
    return kind(spec, num_blocks, dtype, device, zeros)


def _block_bytes(store: torch.Tensor) -> torch.Tensor:
    """[L, N, ...] → u8 [L, N, bytes]."""
    return store.flatten(2).view(torch.uint8)


def _typed_layer(store: torch.Tensor, spec: KVSpec) -> TypedCache:
    """A layer's blocks u8 [N, bytes] as keys and values."""
    key, value = spec.key_type, spec.value_type
    assert key is not None
    assert value is not None
    heads, tokens, dim = spec.num_kv_heads, spec.block_tokens, spec.head_dim
    start = 0

    def take(dtype: torch.dtype, width: int) -> torch.Tensor:
        nonlocal start
        size = heads * tokens * width * dtype.itemsize
        part = store[:, start : start + size].view(dtype)
        start += size
        return part.view(len(part), heads, tokens, width).transpose(1, 2)

    data = [take(_DATA[kind], dim // 2 if kind == "q4_0" else dim) for kind in (key, value)]
    scales = [
        take(torch.float16, dim // KV_GROUP) if kind.startswith("q") else None
        for kind in (key, value)
    ]
    return TypedCache(CachePart(key, data[0], scales[0]), CachePart(value, data[1], scales[1]))
