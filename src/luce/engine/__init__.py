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
