"""Memory that several processes share and that lives as long as one of them holds it. It has no name to leave behind.

A memfd rather than a file in /dev/shm: containers often have 64 MB there, and nobody has to sweep what a killed host
process left. It is sealed, so that no holder can shrink it under another's feet.
"""

import ctypes
import fcntl
import mmap
import os

F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4


class Block:
    """A shared block, mapped. The descriptor may be sent to another process, which maps it by `Block(descriptor)`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.nbytes = os.fstat(descriptor).st_size
        self._map = mmap.mmap(descriptor, self.nbytes)
        self.memory = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def same_as(self, other: "Block") -> bool:
        """Whether both map the same memory."""
        return os.fstat(self.descriptor).st_ino == os.fstat(other.descriptor).st_ino

    def close(self) -> None:
        """Let go of the descriptor. The mapping goes when the last view of it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def create(name: str, nbytes: int, *, present: bool) -> Block:
    """A block of zeros. With `present` all its pages are there when this returns (about 5 GB/s), else on first use."""
    descriptor = os.memfd_create(f"everstep-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        if present:
            os.posix_fallocate(descriptor, 0, nbytes)
        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        return Block(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
