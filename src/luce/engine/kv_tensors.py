"""The KV cache's tensors, in the geometry of a `KVSpec`."""

from __future__ import annotations

import numpy as np
import torch

from luce.kv.spec import KVSpec


class KVTensors:
    """Keys and values of all layers.

    On a CPU the memory comes zeroed from the system and is committed page by page as blocks are
    first written, so a large pool costs nothing until it is used.

    Args:
        spec: the geometry.
        num_blocks: N.
        dtype: of the elements.
        device: where.

    Attributes:
        layers: per layer a tensor [N, P, 2, K, D]: block, token in the block, key or value.
        nbytes: address space taken.
    """

    _by_head = False

    def __init__(
        self, spec: KVSpec, num_blocks: int, dtype: torch.dtype, device: torch.device
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
        store = _lazy_zeros(shape, dtype) if device.type == "cpu" else None
        if store is None:
            store = torch.zeros(shape, dtype=dtype, device=device)
        seen = store.permute(0, 1, 4, 2, 3, 5) if self._by_head else store
        self.layers: tuple[torch.Tensor, ...] = tuple(seen.unbind(0))
        self.nbytes = store.numel() * dtype.itemsize
        assert self.nbytes == spec.bytes_per_block * num_blocks


class HeadMajorKVTensors(KVTensors):
    """The same, with a block's memory head by head, [2, K, P, D].

    What one program of a GPU's attention reads then lies together. The layers' shape is the same,
    their strides are not.
    """

    _by_head = True


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # torch.zeros writes every byte; numpy asks the system for pages that are zero already.
    raw = np.zeros(int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
