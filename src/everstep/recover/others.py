"""A checkpoint of another system as a way to its step, read where it lies: what an import would make of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from everstep.capture.tensors import view
from everstep.codec import body
from everstep.errors import NotARun
from everstep.foreign import recognise
from everstep.foreign.arrive import stream
from everstep.foreign.arrive.plan import Plan, Source, plan
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.found import check, verify
from everstep.store.base import Index, Stored
from everstep.types import Tensor


@dataclass(frozen=True, slots=True)
class OthersWay:
    """One state, with nothing after it."""

    plan: Plan
    name: str
    count = 0

    @property
    def step(self) -> int:
        return self.plan.step

    @property
    def start(self) -> int:
        return self.plan.step

    @property
    def index(self) -> Index:
        """What an import's base would say."""
        stored = tuple(Stored(described, 0, "") for described, _ in self.plan.tensors.values())
        return Index("", 0, 1, self.step, 0, 0, "", 0, stored, self.plan.content)

    def load(self) -> tuple[Index, dict[str, torch.Tensor], Mapping[str, int]]:
        tensors = {name: _filled(described, source) for name, (described, source) in self.plan.tensors.items()}
        return self.index, tensors, {}

    def records(self) -> Iterator[tuple[int, body.Body]]:
        return iter(())


def way(path: str, *, proved: bool = False) -> OthersWay | None:
    """The way, once everything is there and every checksum of the source is right, which may have been `proved` before;
    None when nobody known wrote it."""
    try:
        checkpoint = recognise.read(path)
    except NotARun:
        return None
    check(checkpoint)
    if not proved:
        verify(checkpoint)
    return OthersWay(plan(checkpoint, wishes()), f"{checkpoint.kind} at {checkpoint.path}")


def _filled(described: Tensor, source: Source) -> torch.Tensor:
    memory = memoryview(bytearray(described.nbytes))
    at = 0
    for block in [memoryview(source)] if isinstance(source, bytes) else stream.blocks(source):
        memory[at : at + block.nbytes] = block
        at += block.nbytes
    return view(memory, described)
