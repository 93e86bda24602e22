"""Digests of live tensors: native where the bytes lie in host memory, torch operations elsewhere."""

from collections.abc import Sequence

import torch

from everstep import native
from everstep.capture.marks import Marks
from everstep.capture.shards import local
from everstep.capture.tensors import on_host, plain
from everstep.native import reference
from everstep.types import Pair


class Watch:
    """Digests the same tensors again and again; how they lie is looked at anew only when one has moved."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._pointers: list[int] = []
        self._counts: list[int] = []
        self._widths: list[int] = []
        self._plain = False
        self._marks = Marks()
        self.exact = all(tensor.device.type != "cuda" for tensor in self._tensors)
        """Whether every look compares every bit. On a device it compares how often a tensor was written to."""

    def look(self) -> list[Pair]:
        """What changes when a tensor does: its digest, or on a device where it lies and how often it was written to."""
        return self.digest() if self.exact else self._marks.look(self._tensors)

    def digest(self) -> list[Pair]:
        held = [local(tensor) for tensor in self._tensors]
        pointers = [tensor.data_ptr() for tensor in held]
        if pointers != self._pointers or not all(tensor.is_contiguous() for tensor in held):
            self._pointers = pointers
            self._plain = all(plain(tensor) for tensor in held)
            self._counts = [tensor.numel() for tensor in held]
            self._widths = [tensor.element_size() for tensor in held]
        if not self._plain:
            return digest(held)
        return native.digest(pointers, self._counts, self._widths, [0] * len(pointers), torch.get_num_threads())


def digest(tensors: Sequence[torch.Tensor], *, threads: int | None = None) -> list[Pair]:
    """Of each tensor, the sum of its mixed (logical index, bits); it does not depend on strides or device."""
    held = [on_host(tensor) if tensor.device.type == "cpu" else local(tensor) for tensor in tensors]
    near = [at for at, tensor in enumerate(held) if plain(tensor)]
    found = native.digest(
        [held[at].data_ptr() for at in near],
        [held[at].numel() for at in near],
        [held[at].element_size() for at in near],
        [0] * len(near),
        torch.get_num_threads() if threads is None else threads,
    )
    pairs: dict[int, Pair] = dict(zip(near, found, strict=True))
    return [pairs[at] if at in pairs else reference.digest(tensor) for at, tensor in enumerate(held)]


def digest_at(part: torch.Tensor, first: int, steps: Sequence[int]) -> Pair:
    """What a part adds to a digest in which its first element has the index `first`, and `steps` lead along its axes.

    Parts that make up a tensor add up to its digest, however it is cut: so what was cut anew can be proved. A part
    may lie anyhow; it is copied only if what follows each other in the digest does not do so in memory.
    """
    if part.device.type != "cpu":
        return reference.digest_at(part, first, steps)
    inner, run = part.dim(), 1  # from this axis on, elements have indices that follow each other
    while inner and (part.shape[inner - 1] == 1 or steps[inner - 1] == run):
        inner -= 1
        run *= part.shape[inner]
    held = part.detach()
    if held.is_conj() or held.is_neg() or (held.numel() and not held[(0,) * inner].is_contiguous()):
        held = held.resolve_conj().resolve_neg().contiguous()
    where, width = held.data_ptr(), held.element_size()
    return native.digest_box(where, held.shape, held.stride(), width, first, steps, torch.get_num_threads())


def total(pairs: Sequence[Pair]) -> Pair:
    """The digest of what these are the parts of."""
    return sum(low for low, _ in pairs) % (1 << 64), sum(high for _, high in pairs) % (1 << 64)
