"""Replays a log by the program's own optimizers, on all ranks at once, where they are not known to work element by
element.

Such an optimizer may need what other ranks hold, and asks them for it as it did when it trained (Muon on DTensors
does); or nobody but the program has it. So every rank must hold what it held then, and begin at the same step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch

from everstep.capture.context import Context
from everstep.capture.roster import Roster, elementwise
from everstep.capture.shards import held_of, is_sharded
from everstep.codec import body
from everstep.company import Company, meet
from everstep.errors import Damaged
from everstep.recover import match
from everstep.recover.ways import DiskWay, Way
from everstep.recover.writers import Writers
from everstep.store.base import Index


def needed(roster: Roster) -> bool:
    """Whether a step of these optimizers cannot be told from one rank's part alone."""
    return not all(map(elementwise, roster.optimizers.values()))


def by_itself(roster: Roster) -> bool:
    """Whether one process goes in step with nobody but itself: on DTensors such an optimizer is not replayed beside."""
    return needed(roster) and any(map(is_sharded, roster.parameters.values()))


@dataclass(frozen=True, slots=True)
class InStep:
    """A way that every rank goes, or none: whoever cannot read its part says so before anyone has taken a step."""

    way: Way
    ranks: Company

    @property
    def step(self) -> int:
        return self.way.step

    @property
    def start(self) -> int:
        return self.way.start

    @property
    def name(self) -> str:
        return self.way.name

    @property
    def count(self) -> int:
        return self.way.count

    def load(self) -> tuple[Index, dict[str, torch.Tensor], Mapping[str, int]]:
        found, fault = None, ""
        try:
            found = self.way.load()
        except Damaged as damaged:
            fault = str(damaged)
        faults = agreed(self.ranks, f"in step/{self.name}", fault)
        if found is None:
            raise Damaged(fault)
        if any(faults):
            rank = next(rank for rank, told in enumerate(faults) if told)
            raise Damaged(f"rank {rank} cannot go this way: {faults[rank]}")
        return found

    def records(self) -> Iterator[tuple[int, body.Body]]:
        return self.way.records()


def ways(writers: Writers, roster: Roster, context: Context, ranks: Company) -> list[InStep]:
    """The ways to the step that all ranks can go in step, the shortest first. None if the program is not, on every
    rank, what it was when its own writer wrote."""
    starts: list[int] = []
    if len(writers) == ranks.world and _same(writers.index(ranks.rank), roster, context):
        starts = [route.base.step for route in writers.routes(ranks.rank)]
    said = agreed(ranks, "in step", msgspec.json.encode(starts).decode())
    common = set[int].intersection(*(set(msgspec.json.decode(text, type=list[int])) for text in said))
    return [
        InStep(DiskWay(writers.disk, ranks.rank, route), ranks)
        for route in writers.routes(ranks.rank)
        if route.base.step in common
    ] if common else []  # fmt: skip


def agreed(ranks: Company, key: str, text: str) -> Sequence[str]:
    """What every rank says, by rank."""
    if ranks.world == 1:
        return [text]
    return msgspec.json.decode(meet(ranks, key, lambda said: msgspec.json.encode(said).decode(), text), type=list[str])


def _same(index: Index, roster: Roster, context: Context) -> bool:
    ours = {name: held_of(name, parameter, roster.layout) for name, parameter in roster.parameters.items()}
    return index.held == ours and not match.differences(index, roster, context)
