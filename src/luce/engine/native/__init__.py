"""Kernels in C for a CPU: sources, how they are built, and how Python calls them.

`native.h` names the parts; `product.h`, `pointwise.h`, `attention.h` and others are the kernels,
compiled once for each instruction set as `kernels.c`; `pool.c` runs them on threads; `blocks.c` and
`matrix.c` turn stored GGUF blocks into what the kernels read.
"""
