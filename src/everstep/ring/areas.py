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
    """Made when they are first needed, and made anew when the state has outgrown them.

    Gigabytes take seconds to be brought in and pinned: where that has to be done, a thread does it, and until then
    there is no area.
    """

    def __init__(self, ring: Ring, share: Callable[[int, Block], None], pins: Pins | None) -> None:
        self._ring = ring
        self._share = share
        self._pins = pins
        self._held: dict[int, Area] = {}
        self._made: list[Area] = []
        self._maker: threading.Thread | None = None
        self._failed: Exception | None = None
        self.count = 1

    def adopt(self, number: int, block: Block, sequence: int) -> None:
        """An area that a trainer before us made."""
        self._held[number] = Area(number, block, sequence)
        self.count = max(self.count, len(self._held))

    def free(self, nbytes: int, room: int, newest: int) -> Area | None:
        """An area of at least this size that nobody needs: not the newest state (entry `newest`), nor one that is still
        being filled, nor one that the keeper reads. If one has to be made it gets `room`.

        With one area only, the newest state makes way.
        """
        self._collect()
        usable = [
            area
            for area in self._held.values()
            if not self._ring.busy(area.number) and (self.count == 1 or area.sequence < newest or area.sequence < 0)
        ]
        fitting = [area for area in usable if area.block.nbytes >= nbytes]
        if fitting:
            return self._emptied(min(fitting, key=lambda area: area.sequence))
        if usable:  # too small: make it anew
            return self._make(usable[0].number, room)
        if len(self._held) < self.count:
            return self._make(min(set(range(AREAS_MAX)) - set(self._held)), room)
        return None

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
        """Whether an area has been made, or all of them, after at most `seconds`."""
        maker = self._maker
        if maker is None:
            return False
        watch(lambda: not maker.is_alive() or (bool(self._made) and not all_of_them), seconds)
        made = bool(self._made)
        self._collect()
        if self._failed is not None and not made:
            raise self._failed
        return made

    def close(self) -> None:
        """No area is made or filled any more; what was just being made goes unused."""
        if self._maker is not None:
            self._maker.join()
        for area in self._made:
            area.block.close()
        self._made = []

    def _make(self, number: int, nbytes: int) -> Area | None:
        """The area; where it takes long, a thread makes it, and all that are still missing with it."""
        if self._pins is None:
            return self._use(Area(number, memory.create(f"state-{number}", max(nbytes, 1), present=False)))
        if self._failed is None and (self._maker is None or not self._maker.is_alive()):
            missing = sorted(set(range(self.count)) - set(self._held) - {number})
            self._maker = threading.Thread(
                target=self._bring_in, args=([number, *missing], nbytes), name="everstep-area", daemon=True
            )
            self._maker.start()
        return None

    def _bring_in(self, numbers: list[int], nbytes: int) -> None:
        assert self._pins is not None
        try:
            for number in numbers:
                block = memory.create(f"state-{number}", max(nbytes, 1), present=False)
                self._pins.pin(block)
                self._made.append(Area(number, block))
        except Exception as failed:  # noqa: BLE001 whoever waits for an area is told
            self._failed = failed

    def _collect(self) -> None:
        while self._made:
            self._use(self._made.pop(0))

    def _use(self, area: Area) -> Area:
        old = self._held.get(area.number)
        if old is not None:
            self._emptied(old).block.close()
            if self._pins is not None:
                self._pins.unpin(old.block)
        self._share(area.number, area.block)
        self._held[area.number] = area
        return area

    def _emptied(self, area: Area) -> Area:
        if area.sequence >= 0:
            self._ring.revoke(area.sequence)  # before the first byte changes: nobody takes the mixture for a state
            area.sequence = -1
        return area


def pin_all(pins: Pins, blocks: list[Block]) -> None:
    for block in blocks:
        pins.pin(block)
