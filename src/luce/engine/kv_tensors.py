"""The KV cache's tensors, in the geometry of a `KVSpec`."""

from __future__ import annotations

import numpy as np
import torch

from luce.kv.spec import KVSpec


class KVTensors:
    """Keys and values of all layers.

    On a CPU the memory comes zeroed from the system and is committed page by page as blocks are
    first written, so a large pool costs nothing until it is used.

    Attributes:
        layers: per layer a tensor [N, P, 2, K, D]: block, token in the block, key or value.
        nbytes: address space taken.
    """

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
        store = _lazy_zeros(shape, dtype) if device.type == "cpu" else None
        if store is None:
            store = torch.zeros(shape, dtype=dtype, device=device)
        self.layers: tuple[torch.Tensor, ...] = tuple(store.unbind(0))
        self.nbytes = store.numel() * dtype.itemsize
        assert self.nbytes == spec.bytes_per_block * num_blocks


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # torch.zeros writes every byte; numpy asks the system for pages that are zero already.
    raw = np.zeros(int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
