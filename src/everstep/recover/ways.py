"""Ways to a step: from files, or from the memory that a dead trainer left. Each is a state and what follows it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from everstep.capture.tensors import view
from everstep.codec import body
from everstep.errors import Damaged
from everstep.recover import load
from everstep.recover.choose import Route
from everstep.recover.pages import Pages
from everstep.recover.pump import Pump
from everstep.recover.replay import read
from everstep.ring.held import Held
from everstep.ring.ring import Ring
from everstep.store import state
from everstep.store.base import Index, Stored
from everstep.store.disk import Files
from everstep.store.memory import Block


class Way(Protocol):
    """`start` is the step the state is of. `versions` names what in it is older, by parameter: records repair that."""

    @property
    def step(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    def load(self) -> tuple[Index, dict[str, torch.Tensor], Mapping[str, int]]: ...
    def records(self) -> Iterator[tuple[int, body.Body]]: ...


@dataclass(frozen=True, slots=True)
class DiskWay:
    """A base and the log after it."""

    disk: Files
    rank: int
    route: Route
    seats: load.Seats = load.rooms
    index: Index | None = None
    """Of the base, where it has been read already."""
    pump: Pump | None = None
    """What brings the base into the cache, where that has begun already."""
    pages: Pages | None = None
    """Memory for records, where others were read before."""
    fetched: bool = False
    """Whether the base's tensors are in their seats already."""

    @property
    def step(self) -> int:
        return self.route.step

    @property
    def start(self) -> int:
        return self.route.base.step

    @property
    def name(self) -> str:
        return f"base {self.start}"

    @property
    def count(self) -> int:
        return len(self.route.records)

    def load(self) -> tuple[Index, dict[str, torch.Tensor], Mapping[str, int]]:
        given = (self.disk, self.rank, self.route.base, self.seats, self.index, self.pump)
        return *load.load(*given, fetched=self.fetched), {}

    def records(self) -> Iterator[tuple[int, body.Body]]:
        return ((located.step, found) for located, found in read(self.disk, self.route.records, self.pages))


@dataclass(frozen=True, slots=True)
class MemoryWay:
    """A state in an area, and the entries of the ring after it. No file is read."""

    ring: Ring
    areas: Mapping[int, Block]
    held: Held

    @property
    def step(self) -> int:
        return self.held.step

    @property
    def start(self) -> int:
        return self.held.state.step

    @property
    def name(self) -> str:
        return f"memory of step {self.start}"

    @property
    def count(self) -> int:
        return len(self.held.records)

    def load(self) -> tuple[Index, dict[str, torch.Tensor], Mapping[str, int]]:
        entry = self.held.state
        if entry.area not in self.areas:
            raise Damaged(f"memory of step {entry.step}: its area is not there.")
        memory = self.areas[entry.area].memory
        table, said, small = state.parse(self.ring.pieces(entry), len(memory))
        tensors = {
            item.tensor.name: view(memory[item.place : item.place + item.tensor.nbytes], item.tensor) for item in table
        }
        tensors |= {tensor.name: view(memoryview(bytearray(data)), tensor) for tensor, data in small}
        stored = tuple(Stored(item.tensor, item.place, "") for item in table)
        stored += tuple(Stored(tensor, 0, "") for tensor, _ in small)
        index = Index("", 0, 1, entry.step, 0, 0, "", len(memory), stored, said.content)
        return index, tensors, said.versions

    def records(self) -> Iterator[tuple[int, body.Body]]:
        for entry in self.held.records:
            name = f"record of step {entry.step} in memory"
            yield entry.step, body.parse_pieces(self.ring.pieces(entry), name=name)
