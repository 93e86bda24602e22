"""Places for whole states. Three, if memory allows: one holds the newest, one is filled, one is read by the disk."""

from collections.abc import Callable
from dataclasses import dataclass

from everstep.ring.ring import AREAS_MAX, Ring
from everstep.store import memory
from everstep.store.memory import Block


@dataclass(slots=True)
class Area:
    """A place for one state. `sequence` is the entry that says what is in it, -1 while it is being filled."""

    number: int
    block: Block
    sequence: int = -1


class Areas:
    """Made when they are first needed, and made anew when the state has outgrown them."""

    def __init__(self, ring: Ring, share: Callable[[int, Block], None], pin: Callable[[Block], None]) -> None:
        self._ring = ring
        self._share = share
        self._pin = pin
        self._held: dict[int, Area] = {}
        self.count = 1

    def adopt(self, number: int, block: Block, sequence: int) -> None:
        """An area that a trainer before us made."""
        self._pin(block)
        self._held[number] = Area(number, block, sequence)

    def free(self, nbytes: int, newest: int) -> Area | None:
        """An area of at least this size that neither holds the newest state (entry `newest`) nor is read by the keeper.

        With one area only, the newest state makes way.
        """
        usable = [
            area
            for area in self._held.values()
            if not self._ring.busy(area.number) and (self.count == 1 or area.sequence < 0 or area.sequence != newest)
        ]
        fitting = [area for area in usable if area.block.nbytes >= nbytes]
        if fitting:
            return self._emptied(min(fitting, key=lambda area: area.sequence))
        if usable:  # too small: make it anew
            return self._make(usable[0].number, nbytes)
        if len(self._held) < self.count:
            return self._make(min(set(range(AREAS_MAX)) - set(self._held)), nbytes)
        return None

    def __getitem__(self, number: int) -> Area:
        return self._held[number]

    @property
    def numbers(self) -> list[int]:
        return sorted(self._held)

    def _make(self, number: int, nbytes: int) -> Area:
        if (old := self._held.get(number)) is not None:
            self._emptied(old).block.close()
        block = memory.create(f"state-{number}", max(nbytes, 1), present=False)
        self._pin(block)
        self._share(number, block)
        self._held[number] = Area(number, block)
        return self._held[number]

    def _emptied(self, area: Area) -> Area:
        if area.sequence >= 0:
            self._ring.revoke(area.sequence)  # before the first byte changes: nobody takes the mixture for a state
            area.sequence = -1
        return area
