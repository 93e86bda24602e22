"""Calls of the CUDA driver that torch does not offer: many copies at once, a word after them, pages that stay.

The word is written by the stream itself, behind a fence: who reads it in host memory sees every copy queued before it.
"""

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

MADV_POPULATE_WRITE = 23
TOUCH_BYTES = 256 << 20
TOUCH_THREADS = 8
SOURCE_ORDER_STREAM = 1
ALREADY_REGISTERED = 712


class CudaFailed(RuntimeError):
    """The driver refused a call. The context may be lost; nothing that was promised depends on it."""


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int), ("source", _Location), ("target", _Location), ("flags", ctypes.c_uint)
    ]  # fmt: skip


class Copies:
    """Copies from device memory to places of a pinned block; made once, queued as often as wanted."""

    def __init__(self, places: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None:
        self._count = len(places)
        self._places = list(places)
        self._sources = (ctypes.c_uint64 * self._count)(*sources)
        self._sizes = (ctypes.c_size_t * self._count)(*sizes)

    def queue(self, address: int, stream: int) -> None:
        """Into the block at `address`, all in one call where the driver can (CUDA 13)."""
        if not self._count:
            return
        driver = _driver()
        targets = [address + place for place in self._places]
        if hasattr(driver, "cuMemcpyBatchAsync_v2"):
            attributes = _Attributes(SOURCE_ORDER_STREAM, _Location(0, 0), _Location(0, 0), 0)
            _check(
                driver.cuMemcpyBatchAsync_v2(
                    (ctypes.c_uint64 * self._count)(*targets), self._sources, self._sizes,
                    ctypes.c_size_t(self._count), ctypes.byref(attributes), (ctypes.c_size_t * 1)(0),
                    ctypes.c_size_t(1), ctypes.c_void_p(stream),
                )
            )  # fmt: skip
            return
        for target, source, nbytes in zip(targets, self._sources, self._sizes, strict=True):
            _check(
                driver.cuMemcpyDtoHAsync_v2(
                    ctypes.c_void_p(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream)
                )
            )


def write_word(address: int, value: int, stream: int) -> None:
    """Once the stream gets here, write a 64-bit word into pinned host memory, after everything before it."""
    _check(
        _driver().cuStreamWriteValue64_v2(
            ctypes.c_void_p(stream), ctypes.c_uint64(address), ctypes.c_uint64(value), ctypes.c_uint(0)
        )
    )


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


def _check(code: int) -> None:
    if code:
        raise CudaFailed(f"the CUDA driver refused a copy (error {code}).")
