"""What operations of hybrids and mixtures know beside the fields of `Op`, as `layers.h` has it."""

from __future__ import annotations

from ctypes import Structure, c_int32, c_int64, c_void_p

(
    DENSE,
    ROUNDED_NORM,
    SPLIT_GATES,
    GATE_HEADS,
    SILU_MUL,
    CONVOLVE,
    RECUR,
    ROUTE,
    GROUP_ROWS,
    EXPERT_GATED,
    EXPERT_DOWN,
    ADD_MIXTURE,
) = range(32, 44)
MAX_DIM = 256
MAX_TAPS = 8
MAX_EXPERTS = 1024
MAX_EXPERT_COLUMNS = 32768
LANES = 16
"""Numbers of the longest vector: a row that is not whole ones has no kernels."""


class Dense(Structure):
    """`luce_dense`."""

    _fields_ = [("rows", c_int32), ("columns", c_int32), ("data", c_void_p)]


class Delta(Structure):
    """`luce_delta`."""

    _fields_ = [
        ("key_heads", c_int32),
        ("value_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("conv_width", c_int32),
        ("is_tiled", c_int32),
        ("taps", c_void_p),
        ("decay", c_void_p),
        ("dt_bias", c_void_p),
        ("norm", c_void_p),
        ("mixed", c_void_p),
        ("conv_states", c_void_p),
        ("states", c_void_p),
        ("conv_stride", c_int64),
        ("state_stride", c_int64),
    ]


class Mixture(Structure):
    """`luce_mixture`."""

    _fields_ = [
        ("num_experts", c_int32),
        ("num_chosen", c_int32),
        ("norm_weights", c_int32),
        ("logits_stride", c_int32),
        ("chosen", c_void_p),
        ("weights", c_void_p),
        ("loads", c_void_p),
        ("order", c_void_p),
    ]


class Shared(Structure):
    """`luce_shared`."""

    _fields_ = [("shared", c_void_p), ("gate", c_void_p), ("gate_stride", c_int64)]
