"""What a launch of a Triton kernel costs the host, by Triton and directly; needs no GPU.

    PYTHONPATH=src:. python -m bench.engine.direct

Kernels are compiled for an H200 and launched by Triton's own launcher into a driver that does
nothing, built here by the C compiler: so what is timed is all but the driver's part. CPU time of
the thread, the best of several rounds, both ways in turns.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia

from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.qkv import HeadNorms, TokenPlaces
from luce.engine.ops.triton import (
    gated_mlp,
    paged_attention_decode,
    paged_attention_prefill,
    place_qkv,
    rms_norm,
)

_DRIVER = """
#include "cuda.h"
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) { return 0; }
CUresult cuPointerGetAttribute(void *d, CUpointer_attribute a, CUdeviceptr p) {
  *(CUdeviceptr *)d = p;
  return 0;
}
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuDeviceGet(CUdevice *d, int o) { *d = 0; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)1; return 0; }
CUresult cuGetErrorString(CUresult e, const char **s) { *s = ""; return 0; }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return 0; }
"""
_TOKENS, _ROUNDS, _CALLS = 256, 7, 300


class _Utils:
    """Loads nothing."""

    def load_binary(self, *_: object) -> tuple[int, ...]:
        return 1, 1, 32, 0, 1024

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448, "multiprocessor_count": 132}


class _Driver:
    """An H200 that does nothing."""

    utils = _Utils()
    launcher_cls = nvidia.CudaLauncher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def no_driver(folder: Path) -> None:
    """Have Triton find a driver that does nothing."""
    include = Path(nvidia.__file__).parent / "include"
    library = folder / "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", f"-I{include}", "-xc", "-", "-o", str(library),
         "-Wl,-soname,libcuda.so.1"],
        input=_DRIVER.encode(), check=True,
    )  # fmt: skip
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    triton.runtime.driver.set_active(_Driver())


def cases() -> dict[str, tuple[Any, Callable[[], object]]]:
    """Kernels of a layer of the 0.6B shape, and calls that launch each once."""
    heads, dtype = HeadShape(16, 8, 128), torch.bfloat16
    qkv = torch.zeros(_TOKENS, 32, 128, dtype=dtype)
    cache = torch.zeros(64, 2, 8, 16, 128, dtype=dtype).permute(0, 3, 1, 2, 4)
    numbers = torch.zeros(_TOKENS + 1, dtype=torch.int32)

    def tensors(num_decode: int) -> AttentionTensors:
        table = torch.zeros(_TOKENS + 1, 130, dtype=torch.int32)
        return AttentionTensors(table, numbers[1:], numbers[1:], numbers, num_decode, 8)

    scratch = paged_attention_decode.DecodeScratch.make(heads, _TOKENS, 2080, torch.device("cpu"))
    out, x = torch.zeros(_TOKENS, 2048, dtype=dtype), torch.zeros(_TOKENS, 1024, dtype=dtype)
    gate_up, weight = torch.zeros(_TOKENS, 6144, dtype=dtype), torch.zeros(1024, dtype=dtype)
    norms = HeadNorms(torch.zeros(128, dtype=dtype), torch.zeros(128, dtype=dtype), 1e-6)
    places = TokenPlaces(torch.zeros(_TOKENS, 64, 2), torch.zeros(_TOKENS, dtype=torch.int64))
    place = place_qkv.FusedPlaceQkv(interleaved=False)
    decode, prefill = tensors(_TOKENS), tensors(0)
    return {
        "norm": (rms_norm._norm_kernel, lambda: rms_norm.rms_norm(x, weight, 1e-6)),
        "place": (place_qkv._place_kernel, lambda: place(qkv, heads, norms, places, cache)),
        "decode attention": (
            paged_attention_decode._partial_kernel,
            lambda: paged_attention_decode.decode_attention(
                qkv, cache, decode, heads, scratch, out
            ),
        ),
        "prefill attention": (
            paged_attention_prefill._prefill_kernel,
            lambda: paged_attention_prefill.prefill_attention(qkv, cache, prefill, heads, out),
        ),
        "gate": (gated_mlp._gate_kernel, lambda: gated_mlp.silu_and_mul(gate_up)),
    }


def spent(work: Callable[[], object]) -> float:
    """Microseconds of a call."""
    began = time.thread_time()
    for _ in range(_CALLS):
        work()
    return (time.thread_time() - began) / _CALLS * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        no_driver(Path(folder))
        for name, (kernel, call) in cases().items():
            direct = kernel.run
            call()
            call()
            given: dict[str, Any] = {}
            kernel.run = lambda *args, given=given, **named: given.update(args=args, named=named)
            call()
            kernel.run = direct
            ways = {
                way: partial(run, *given["args"], **given["named"])
                for way, run in (("Triton", direct._usual), ("direct", direct))
            }
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(_ROUNDS):
                best = {way: min(best[way], spent(work)) for way, work in ways.items()}
            whole = min(spent(call) for _ in range(_ROUNDS))
            print(
                f"{name:18} by Triton {best['Triton']:5.1f} us, directly {best['direct']:5.1f} us: "
                f"{best['Triton'] / best['direct']:.2f}; with what calls it {whole:5.1f} us"
            )


if __name__ == "__main__":
    main()
