"""What the keeper's threads share: records on their way to the disk, a base to be written, and how it goes.

All of it is touched under the keeper's lock only; the functions here are pure looks at it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from everstep.keeper.health import Health, State
from everstep.log.writer import Record
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Book

BATCH_BYTES = 64 << 20
WARNINGS_MAX = 20
HASHED_AHEAD_BYTES = 1 << 20
"""Records from this size on get their checksum from a thread of its own, while those before them are written."""


class Snapshot(Protocol):
    """A whole state, copied, that can write itself."""

    step: int

    def write(self, disk: Disk, book: Book) -> BaseEntry: ...
    def release(self) -> None: ...


@dataclass(slots=True)
class Item:
    """A record in the buffer, and what to call when its memory may be used again."""

    record: Record
    nbytes: int
    release: Callable[[], None]
    state: Literal["waiting", "hashing", "writing"] = "waiting"


@dataclass(slots=True)
class Shared:
    """The buffer and the state of the run."""

    items: deque[Item] = field(default_factory=deque)
    snapshot: Snapshot | None = None
    queued_bytes: int = 0
    committed: int = -1
    bases: int = 0
    state: State = "ok"
    errors: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    closing: bool = False

    @property
    def stopped(self) -> bool:
        return self.state in ("fenced", "failed", "closed")

    def drop(self) -> list[Item]:
        """Take out every record that is not being written yet; none if one between them is just being hashed."""
        kept = [item for item in self.items if item.state != "waiting"]
        dropped = [item for item in self.items if item.state == "waiting"]
        if kept and dropped and kept[-1].record.step > dropped[0].record.step:
            return []
        self.items = deque(kept)
        self.queued_bytes = sum(item.nbytes for item in kept)
        return dropped

    def warn(self, text: str) -> None:
        self.warnings[text] = None
        while len(self.warnings) > WARNINGS_MAX:
            del self.warnings[next(iter(self.warnings))]

    def health(self, acknowledged: int) -> Health:
        error = next(iter(self.errors.values()), None)
        return Health(
            self.state, self.committed, acknowledged, acknowledged, self.queued_bytes, 0, 0, self.bases,
            error, tuple(self.warnings),
        )  # fmt: skip


def batch(items: deque[Item]) -> list[Item]:
    """What can be written now, up to a bound: all that waits, but for what is just being hashed and what follows it."""
    found, nbytes = [], 0
    for item in items:
        if item.state == "hashing" or nbytes >= BATCH_BYTES:
            break
        found.append(item)
        nbytes += item.nbytes
    return found


def unhashed(items: deque[Item]) -> Item | None:
    """The first large record whose checksum nobody has begun to compute."""
    for item in items:
        if item.nbytes >= HASHED_AHEAD_BYTES and item.state == "waiting" and item.record.checksum is None:
            return item
    return None
