"""Places for whole states. Three, if memory allows: one holds the newest, one is filled, one is read by the disk."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from everstep.ring.ring import AREAS_MAX, Ring
from everstep.ring.watch import watch
from everstep.store import memory
from everstep.store.memory import Block

TAKEN = 1 << 62
"""In place of an entry's number: the area is being filled over several steps."""


class Pins(Protocol):
    """Makes memory fit for a device's own copies; before it goes away it must be unpinned."""

    def pin(self, block: Block) -> None: ...
    def unpin(self, block: Block) -> None: ...


@dataclass(slots=True)
class Area:
    """A place for one state. `sequence` is the entry that says what is in it, -1 while it is being filled."""

    number: int
    block: Block
    sequence: int = -1


class Areas:
    """Made all at once, at first, and one by one anew when the state has outgrown them.

    An area is used once the keeper has it (`share` says so): whatever becomes of this process, its bytes are not lost.
    Gigabytes take seconds to be pinned: where that has to be done, a thread does it. Until then there is no area.
    """

    def __init__(self, ring: Ring, share: Callable[[int, Block], bool], pins: Pins | None) -> None:
        self._ring = ring
        self._share = share
        self._pins = pins
        self._held: dict[int, Area] = {}
        self._made: list[Area] = []
        """Those that the keeper does not have yet."""
        self._maker: threading.Thread | None = None
        self._failed: Exception | None = None
        self.count = 1

    def adopt(self, number: int, block: Block, sequence: int) -> None:
        """An area that a trainer before us made."""
        self._held[number] = Area(number, block, sequence)
        self.count = max(self.count, len(self._held))

    def prepare(self, room: int) -> None:
        """Begin to make them, before one is needed."""
        if not self._made and not self._making:
            self._make(room, instead_of=None)

    def grow(self, count: int, room: int) -> bool:
        """Whether there are so many; else more are begun."""
        self._collect()
        self.count = max(self.count, count)
        if len(self._held) < count:
            self.prepare(room)
        return len(self._held) >= count

    def free(self, nbytes: int, room: int, newest: int) -> Area | None:
        """An area of at least this size that nobody needs: not the newest state (entry `newest`), nor one that is still
        being filled, nor one that the keeper reads. If one has to be made it gets `room`.

        With one area only, the newest state makes way.
        """
        self._collect()
        found = self._fitting(nbytes, newest)
        if found is None and not self._made and not self._making:
            usable = self._usable(newest)
            if usable or len(self._held) < self.count:
                self._make(room, instead_of=usable[0] if usable else None)
                found = self._fitting(nbytes, newest)
        return None if found is None else self._emptied(found)

    def __getitem__(self, number: int) -> Area:
        return self._held[number]

    @property
    def numbers(self) -> list[int]:
        return sorted(self._held)

    def emptied(self, sequence: int) -> None:
        """The state of this entry was given up: its area is free."""
        for area in self._held.values():
            if area.sequence == sequence:
                area.sequence = -1

    def wait(self, seconds: float, *, all_of_them: bool = False) -> bool:
        """Whether an area that is being made is there, or all of them, after at most `seconds`."""
        before = len(self._held)

        def there() -> bool:
            making = self._making  # looked at first: what is made after this look is still to come
            self._collect()
            return (not making and not self._made) or (len(self._held) > before and not all_of_them)

        watch(there, seconds)
        if self._failed is not None and len(self._held) == before:
            raise self._failed
        return len(self._held) > before

    def close(self) -> None:
        """No area is made or filled any more; what was just being made goes unused."""
        if self._maker is not None:
            self._maker.join()
        for area in self._made:
            area.block.close()
        self._made = []

    def _usable(self, newest: int) -> list[Area]:
        """Those that nobody needs."""
        return [
            area
            for area in self._held.values()
            if not self._ring.busy(area.number) and (self.count == 1 or area.sequence < newest or area.sequence < 0)
        ]

    def _fitting(self, nbytes: int, newest: int) -> Area | None:
        fitting = [area for area in self._usable(newest) if area.block.nbytes >= nbytes]
        return min(fitting, key=lambda area: area.sequence, default=None)

    @property
    def _making(self) -> bool:
        return self._maker is not None and self._maker.is_alive()

    def _make(self, nbytes: int, *, instead_of: Area | None) -> None:
        """Make all that are missing; one that is too small first goes away, so that nobody takes it for the new one."""
        if self._failed is not None:
            return
        if instead_of is not None:
            del self._held[instead_of.number]
            self._emptied(instead_of).block.close()
            if self._pins is not None:
                self._pins.unpin(instead_of.block)
        numbers = [number for number in range(AREAS_MAX) if number not in self._held][: self.count - len(self._held)]
        if self._pins is None:
            self._made = [self._create(number, nbytes) for number in numbers]
            self._collect()
            return
        self._maker = threading.Thread(
            target=self._bring_in, args=(self._pins, numbers, nbytes), name="everstep-area", daemon=True
        )
        self._maker.start()

    def _create(self, number: int, nbytes: int) -> Area:
        return Area(number, memory.create(f"state-{number}", max(nbytes, 1), present=False))

    def _bring_in(self, pins: Pins, numbers: list[int], nbytes: int) -> None:
        try:
            for number in numbers:
                area = self._create(number, nbytes)
                pins.pin(area.block)
                self._made.append(area)
        except Exception as failed:  # noqa: BLE001 whoever waits for an area is told
            self._failed = failed

    def _collect(self) -> None:
        while self._made and self._share(self._made[0].number, self._made[0].block):
            area = self._made.pop(0)
            self._held[area.number] = area

    def _emptied(self, area: Area) -> Area:
        if area.sequence >= 0:
            self._ring.revoke(area.sequence)  # before the first byte changes: nobody takes the mixture for a state
            area.sequence = -1
        return area


def pin_all(pins: Pins, blocks: list[Block]) -> None:
    for block in blocks:
        pins.pin(block)
