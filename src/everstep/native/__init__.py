"""Native kernels: digests, copies, shared words, and optimizer rules equal to torch's CPU optimizers bit for bit.

Buffers are given as addresses (`tensor.data_ptr()`) of contiguous memory that the caller keeps alive; addresses are
trusted, list lengths are checked. All functions release the GIL. `threads` never changes a bit.
"""

from ._kernels import Bus, Copies, adam, capability, digest, digest_box, gather, lay, load, sgd, store, threads_max

__all__ = [
    "Bus",
    "Copies",
    "adam",
    "capability",
    "digest",
    "digest_box",
    "gather",
    "lay",
    "load",
    "sgd",
    "store",
    "threads_max",
]
