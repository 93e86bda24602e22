"""Replays a branch from base to base, twice: by native rules and by torch's own optimizer. Reads only.

Whoever replays must get the trainer's bits at every record, and at the next base the tensors that the trainer wrote.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from everstep.capture.digests import digest
from everstep.capture.roster import Roster
from everstep.capture.snapshot import optimizer_tensors
from everstep.errors import CannotReplay, EverstepError, ReplayDiffers
from everstep.log.inventory import Inventory
from everstep.log.reader import Located
from everstep.recover import load
from everstep.recover.ferry import Ferry
from everstep.recover.place import place_base
from everstep.recover.replay import Folded, Replay, read
from everstep.recover.standin import assemble
from everstep.shadow.rules import Rules
from everstep.store.base import Index
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry
from everstep.types import printed

SHOWN = 3


@dataclass(slots=True)
class Leg:
    """From a base to the next, or to the end. Of `natively` and `by_torch`, None says that every digest was met."""

    epoch: int
    base: int
    last: int
    records: int
    to_base: bool
    native_updates: int = 0
    natively: str | None = None
    by_torch: str | None = None
    agree: bool = True
    skipped: str | None = None

    @property
    def failed(self) -> bool:
        """Whether no way of replaying gives what the trainer had."""
        natively = self.natively is not None or not self.native_updates
        return self.skipped is None and self.by_torch is not None and natively


@dataclass(slots=True)
class _Run:
    """One replay of a leg: the digests it ended with and the first thing it got wrong."""

    fault: str | None = None
    natively: int = 0
    digests: dict[str, str] = field(default_factory=dict)


def legs(inventory: Inventory, known: set[tuple[BaseEntry, int]]) -> list[tuple[BaseEntry, int, BaseEntry | None]]:
    """Base, last step and next base of every stretch of the branch that is not `known` yet; they are then."""
    found: list[tuple[BaseEntry, int, BaseEntry | None]] = []
    for at, entry in enumerate(inventory.bases):
        follower = inventory.bases[at + 1] if at + 1 < len(inventory.bases) else None
        last = inventory.reach(entry.step)
        following = follower if follower is not None and follower.step <= last else None
        last = min(last, following.step) if following is not None else last
        if last > entry.step and (entry, last) not in known:
            known.add((entry, last))
            found.append((entry, last, following))
    return found


def rehearse(
    disk: Disk, inventory: Inventory, found: list[tuple[BaseEntry, int, BaseEntry | None]], done: Callable[[int], None]
) -> Iterator[Leg]:
    """Replay each leg; `done` is called with the records' bytes as they are applied."""
    rank = inventory.manifest.writer
    for entry, last, following in found:
        records = [inventory.records[step] for step in range(entry.step + 1, last + 1)]
        leg = Leg(entry.epoch, entry.step, last, len(records), following is not None)
        try:
            index, tensors = load.load(disk, rank, entry)
            wanted = None if following is None else load.load(disk, rank, following)[0]
            first = _replay(disk, index, tensors, records, wanted, done, native=True)
            second = _replay(disk, index, tensors, records, wanted, done, native=False)
        except CannotReplay as other:
            leg.skipped = str(other)
        except EverstepError as damaged:
            leg.skipped = f"cannot be read: {damaged}"
        except (RuntimeError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as refused:
            leg.skipped = f"torch's optimizer cannot be run here: {type(refused).__name__}: {refused}"
        else:
            leg.native_updates, leg.natively, leg.by_torch = first.natively, first.fault, second.fault
            leg.agree = first.digests == second.digests and first.fault == second.fault
        yield leg


def _replay(
    disk: Disk, index: Index, tensors: dict[str, torch.Tensor], records: list[Located], wanted: Index | None,
    done: Callable[[int], None], *, native: bool,
) -> _Run:  # fmt: skip
    roster = assemble(index, tensors, replay=True)
    threads = torch.get_num_threads()
    ferry = Ferry()
    place_base(index, tensors, roster, ferry)
    replay = Replay(roster, Rules(roster.parameters, roster.optimizers, threads) if native else None, ferry)
    folded: Folded = {name: (item, tensors, index.step) for name, item in index.content.context.items()}
    run = _Run()
    for located, record in read(disk, records):
        try:
            replay.run([(located.step, record)], folded)  # one at a time: each digest is compared, not only the last
        except ReplayDiffers as differs:
            run.fault = run.fault or str(differs)
        done(located.frame.nbytes)
    run.natively = replay.natively
    run.digests = _digests(roster, folded)
    if wanted is not None and run.fault is None:
        stored = {item.tensor.name: item.digest for item in wanted.tensors}
        other = [name for name, value in run.digests.items() if stored.get(name) != value]
        if other:
            more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
            shown = ", ".join(repr(name) for name in other[:SHOWN])
            run.fault = f"step {wanted.step}: replay gives another {shown}{more} than base {wanted.step} holds."
    return run


def _digests(roster: Roster, folded: Folded) -> dict[str, str]:
    """Of everything that a base must hold bit for bit: parameters, optimizer state, buffers."""
    held = {f"model/{name}": parameter.detach() for name, parameter in roster.parameters.items()}
    held |= optimizer_tensors(roster)
    for name, (item, blobs, _) in folded.items():
        if name.startswith("buffer/"):
            held[item["v"]] = blobs[item["v"]]  # a buffer is one tensor; base and record name it alike
    return {name: printed(pair) for name, pair in zip(held, digest(list(held.values())), strict=True)}
