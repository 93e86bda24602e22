"""The trainer's hand on the ring: gives out its bytes in turn and writes its entries.

Bytes are taken back in turn as well, once neither the disk (the keeper's word) nor the memory tier (ours) needs them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.ring.ring import E_HOST, STATE, W_HEAD, W_KEEP, W_RELEASED, Entry, Ring
from everstep.types import padded


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the ring. `address` is where they lie in this process."""

    offset: int
    nbytes: int
    memory: memoryview
    address: int


class Pen:
    """One entry is written at a time: `take` its extents, then `write` it, or `abandon` it."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._next = ring.word(W_HEAD)
        self._live: deque[tuple[int, int]] = deque()
        for sequence in range(min(ring.word(W_RELEASED), ring.word(W_KEEP)), self._next):
            self._live.append((sequence, ring.read(sequence).start))
        self._position = self._start = ring.read(self._next - 1).end if self._next else 0
        self._unsaid: list[int] = []

    @property
    def next(self) -> int:
        """The sequence number of the entry being written."""
        return self._next

    @property
    def begun(self) -> bool:
        """Whether something was taken for the entry being written."""
        return self._position != self._start

    @property
    def used_bytes(self) -> int:
        self._collect()
        return self._position - self._tail()

    @property
    def unread_bytes(self) -> int:
        """What the disk has still to take, or to pass over."""
        self._collect()
        behind = self.ring.word(W_RELEASED) - (self._live[0][0] if self._live else self._next)
        return self._position - (self._live[max(behind, 0)][1] if behind < len(self._live) else self._start)

    @property
    def kept(self) -> bool:
        """Whether memory needs the oldest entry: only a newer state makes room."""
        self._collect()
        return bool(self._live) and self._live[0][0] >= self.ring.word(W_KEEP)

    def room(self, nbytes: int) -> bool:
        """Whether `take(nbytes)` would succeed now."""
        return self._fit(padded(nbytes)) is not None

    def take(self, nbytes: int) -> Extent | None:
        """Bytes for the entry being written, aligned and in one piece; None when there is no room."""
        length = padded(nbytes)
        position = self._fit(length)
        if position is None:
            return None
        self._position = position + length
        offset = position % self.ring.data_bytes
        address = self.ring.block.address + self.ring.data + offset
        return Extent(offset, nbytes, self.ring.part(offset, nbytes), address)

    def put(self, pieces: list[bytes | bytearray | memoryview]) -> Extent | None:
        """The pieces, copied one after the other into an extent of their own; None when there is no room."""
        extent = self.take(sum(memoryview(piece).nbytes for piece in pieces))
        if extent is None:
            return None
        at = 0
        for piece in pieces:
            view = memoryview(piece).cast("B")
            extent.memory[at : at + len(view)] = view
            at += len(view)
        return extent

    def write(
        self, kind: int, step: int, extents: list[Extent], *, area: int = -1, low: int | None = None, late: int = 0
    ) -> int:
        """The entry, from extents that were taken for it; it counts once both sides have vouched for it."""
        sequence = self._next
        named = [(extent.offset, extent.nbytes) for extent in extents]
        if kind != STATE:  # whose pieces are told apart by their number
            named = named[:1] + _joined(named[1:])
        entry = Entry(
            sequence, kind, step, area, self._start, self._position, step if low is None else low, late, tuple(named)
        )
        self.ring.write(entry)
        self._unsaid.append(sequence)
        self._live.append((sequence, self._start))
        self._next += 1
        self._start = self._position
        self.ring.say(W_HEAD, self._next)
        return sequence

    def vouch(self, sequence: int) -> None:
        """The host's part of an entry is there, and right."""
        self.ring.vouch(sequence, E_HOST)
        self._unsaid.remove(sequence)

    def void(self, sequence: int) -> None:
        """Give up an entry that was written but not vouched for."""
        self.ring.void(sequence)
        self._unsaid.remove(sequence)

    @property
    def unsaid(self) -> list[int]:
        """The entries that were written and are not vouched for yet."""
        return list(self._unsaid)

    def abandon(self) -> None:
        """Give back what was taken for an entry that is not written. Nothing may be copied into it any more."""
        self._position = self._start

    def keep_from(self, sequence: int) -> None:
        """The memory tier needs nothing before this entry any more."""
        self.ring.say(W_KEEP, sequence)

    def _collect(self) -> None:
        bound = min(self.ring.word(W_RELEASED), self.ring.word(W_KEEP))
        while self._live and self._live[0][0] < bound:
            self._live.popleft()

    def _tail(self) -> int:
        return self._live[0][1] if self._live else self._start

    def _fit(self, length: int) -> int | None:
        """Where so many bytes can begin."""
        size = self.ring.data_bytes
        self._collect()
        if self._next - (self._live[0][0] if self._live else self._next) >= self.ring.entries - 1:
            return None
        position = self._position
        if position % size + length > size:  # not in one piece: begin at the ring's start again
            position += size - position % size
        return position if position + length - self._tail() <= size else None


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that follow each other as one: a step may have many updates, and an entry has room for few extents. What is
    taken for one entry is in one piece, but for where the ring begins anew."""
    found: list[tuple[int, int]] = []
    for offset, nbytes in extents:
        if found and sum(found[-1]) == offset:
            found[-1] = (found[-1][0], found[-1][1] + nbytes)
        else:
            found.append((offset, nbytes))
    return found
