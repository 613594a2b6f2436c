"""The engine. Settings that must stand before PyTorch is imported stand here."""

from __future__ import annotations

import os

# PyTorch's OpenMP threads wait for one another some ten times a layer. By default they spin for
# milliseconds before they sleep, which on a machine where anything else runs costs a scheduler
# time slice at every wait: measured with two cores and one busy neighbour, 2 tokens a second at
# one row against 33 with 4000 turns (about 50 us); on an idle machine there is no difference.
os.environ.setdefault("GOMP_SPINCOUNT", "4000")
# Decoding reads all weights once a step; with pages of 2 MiB that is 8 % faster (27.6 ms instead
# of 29.7 at one row).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _pinning_threads() -> int:
    """How many make memory pinned: a power of two, as PyTorch wants it."""
    return 1 << (min(16, len(os.sched_getaffinity(0))).bit_length() - 1)


# The first eviction of a model pins as much memory as its weights take. One thread does 1.2 to 1.6
# GB/s on an H200's host, eight 5.6; copies are as fast. Whoever sets PyTorch's allocators decides.
if not os.environ.keys() & {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}:
    os.environ["PYTORCH_ALLOC_CONF"] = (
        f"pinned_use_cuda_host_register:True,pinned_num_register_threads:{_pinning_threads()}"
    )
