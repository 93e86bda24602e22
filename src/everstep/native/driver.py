"""Calls of the CUDA driver that torch does not offer: host memory that others made, and that stays, pinned."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MADV_POPULATE_WRITE = 23
TOUCH_BYTES = 256 << 20
TOUCH_THREADS = 8
ALREADY_REGISTERED = 712


class CudaFailed(RuntimeError):
    """The driver refused a call. The context may be lost; nothing that was promised depends on it."""


def pin(address: int, nbytes: int) -> None:
    """Let the device copy into this memory. Its pages are brought in first, on several threads: that is faster."""
    parts = range(0, nbytes, TOUCH_BYTES)
    with ThreadPoolExecutor(TOUCH_THREADS) as pool:
        list(pool.map(lambda at: _touch(address + at, min(TOUCH_BYTES, nbytes - at)), parts))
    driver, where = _driver(), ctypes.c_void_p(address)
    code = driver.cuMemHostRegister_v2(where, ctypes.c_size_t(nbytes), ctypes.c_uint(0))
    if code == ALREADY_REGISTERED:  # memory that went away without being unpinned lay here
        driver.cuMemHostUnregister(where)
        code = driver.cuMemHostRegister_v2(where, ctypes.c_size_t(nbytes), ctypes.c_uint(0))
    if code:
        raise CudaFailed(
            f"{nbytes} bytes of host memory could not be pinned (CUDA error {code}). Lower Settings.buffer_bytes_max "
            "or free host memory; 'ulimit -l' must allow it."
        )


def unpin(address: int) -> None:
    _driver().cuMemHostUnregister(ctypes.c_void_p(address))


def _touch(address: int, nbytes: int) -> None:
    """Advice only: where the kernel does not know it, the pages come in when they are pinned."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), MADV_POPULATE_WRITE)


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
