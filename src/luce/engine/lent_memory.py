"""Tensors over memory that belongs to others by then."""

from __future__ import annotations

import torch


class _Place:
    """Bytes of a GPU, in the form in which libraries hand them to each other without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def lent(values: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep it; on a CPU the tensor itself.

    What a captured step leaves lies in its graphs' pool, which stays as long as a graph does; once
    nobody keeps it, steps captured later leave theirs in the same place. So it may be read and
    changed until the next of them is replayed.
    """
    if values.device.type == "cpu":
        return values
    storage = values.untyped_storage()
    whole = _view(storage.data_ptr(), storage.nbytes(), values)
    return whole.as_strided(values.shape, values.stride(), values.storage_offset())


def seen_by(pinned: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Contiguous pinned memory as a tensor of the device, which reads and writes it from afar.

    Raises:
        RuntimeError: the device cannot.
    """
    return _view(pinned.data_ptr(), pinned.nbytes, pinned, device).view(pinned.shape)


def _view(
    address: int, nbytes: int, like: torch.Tensor, device: torch.device | None = None
) -> torch.Tensor:
    whole = torch.as_tensor(_Place(address, nbytes), device=device or like.device)
    return whole.view(like.dtype)
