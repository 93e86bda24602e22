"""Which square root torch.sqrt computes on this machine, as an address that `adam` takes.

torch's x86 builds send torch.sqrt to MKL's vector library, whose result is up to one ulp off the correctly rounded one
(17 % of float32 inputs on a Zen 4, 0.6 % on a Xeon: the same MKL, other bits). Adam's "single" and "foreach"
implementations contain it; the fused kernel does not. So those two rules call the very function that this torch calls,
and prove that they do.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch

from everstep.native import reference

# VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE: how ATen calls it.
_VML_MODE = 0x2 | 0x140000 | 0x100


class UnknownSquareRoot(RuntimeError):
    """torch.sqrt is neither correctly rounded nor MKL's here: replay Adam through torch, not through `adam`."""


@cache
def address(dtype: torch.dtype) -> int:
    """What `adam(square_root=)` needs for "single" and "foreach": 0 where torch.sqrt is correctly rounded."""
    samples = _samples(dtype)
    expected = torch.sqrt(samples)
    if _same_bits(_rounded(samples), expected):
        return 0
    function = _vector_library(dtype)
    if function is not None:
        target = torch.empty_like(samples)
        pointers = ctypes.c_void_p(samples.data_ptr()), ctypes.c_void_p(target.data_ptr())
        function(ctypes.c_int64(samples.numel()), *pointers, ctypes.c_int64(_VML_MODE))
        if _same_bits(target, expected):
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise UnknownSquareRoot(f"torch {torch.__version__}: the square root of {dtype} is neither MKL's nor IEEE 754's")


def fingerprint(dtype: torch.dtype) -> tuple[int, int]:
    """Equal on two machines whose torch.sqrt agrees on the samples; record it where "single" or "foreach" trained."""
    return reference.digest(torch.sqrt(_samples(dtype)))


def _samples(dtype: torch.dtype) -> torch.Tensor:
    """8,192 values in [2^-40, 2^24) with all bits of the significand in play, without touching torch's generator."""
    index = torch.arange(1 << 13, dtype=torch.int64)
    mixed = index * 0x5851F42D4C957F2D
    significand = 1 + ((mixed >> 11) & ((1 << 52) - 1)).to(torch.float64) * 2.0**-52
    return torch.ldexp(significand, (index & 63) - 40).to(dtype)


def _rounded(samples: torch.Tensor) -> torch.Tensor:
    """Correctly rounded: math.sqrt in double, whose second rounding to float is harmless (53 >= 2 * 24 + 2)."""
    return torch.tensor([math.sqrt(value) for value in samples.tolist()], dtype=samples.dtype)


def _vector_library(dtype: torch.dtype) -> Any:
    """MKL's function in the loaded libtorch_cpu, or None in a build without it."""
    name = {torch.float32: "vmsSqrt_64", torch.float64: "vmdSqrt_64"}[dtype]
    try:
        return getattr(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")), name)
    except (OSError, AttributeError):
        return None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    words = torch.int32 if a.dtype == torch.float32 else torch.int64
    return torch.equal(a.view(words), b.view(words))
