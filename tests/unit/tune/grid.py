"""Small instances whose best schedule lies on a grid, so that two ways to find it agree exactly and not nearly.

Time is counted in slots, bytes in blocks; the bus carries a block per slot. A piece read in place takes `factor` slots
per block, from its many copies. Slots and blocks are powers of two in seconds and bytes: floats hold them exactly.
"""

import random
from dataclasses import dataclass

from everstep.tune.facts import Facts, Piece

SLOT_SECONDS = 2.0**-10
BLOCK_BYTES = 512
BUS = BLOCK_BYTES / SLOT_SECONDS
SNAPSHOT_SLOTS = 1 / 64
"""What snapshotting a block costs: less than any wait of a whole slot, with as few blocks as there are here."""


@dataclass(frozen=True)
class Grid:
    blocks: tuple[int, ...]
    factors: tuple[int, ...]
    forward: int
    backward: int
    optimizer: int
    gradient: int
    """Blocks; the gradient takes one slot more when copies cost anything."""
    copies_cost: bool
    room: tuple[int, ...]
    """Free blocks in each slot, from the start of the optimizer step on."""
    peak_max: int

    @property
    def window(self) -> int:
        return self.forward + self.backward

    @property
    def step(self) -> int:
        return self.window + self.optimizer

    @property
    def gradient_slots(self) -> int:
        return self.gradient + (1 if self.gradient and self.copies_cost else 0)

    def facts(self) -> Facts:
        pieces = (
            Piece(str(at), blocks * BLOCK_BYTES, (factor - 1) * blocks if self.copies_cost else 1)
            for at, (blocks, factor) in enumerate(zip(self.blocks, self.factors, strict=True))
        )
        return Facts(
            pieces=tuple(pieces),
            bus_bytes_per_s=BUS,
            copy_seconds=SLOT_SECONDS if self.copies_cost else 0.0,
            device_bytes_per_s=2 * BUS / SNAPSHOT_SLOTS,
            forward_seconds=self.forward * SLOT_SECONDS,
            backward_seconds=self.backward * SLOT_SECONDS,
            optimizer_seconds=self.optimizer * SLOT_SECONDS,
            gradient_bytes=self.gradient * BLOCK_BYTES,
            interference=1 / 32,
            room=tuple((at * SLOT_SECONDS, free * BLOCK_BYTES) for at, free in enumerate(self.room)),
        )


def drawn(chance: random.Random) -> Grid:
    """Any instance: all regimes, with and without gradients, with room to spare and with none."""
    count = chance.randint(1, 5)
    forward, backward, optimizer = chance.randint(1, 4), chance.randint(1, 6), chance.randint(0, 6)
    copies_cost = chance.random() < 0.4
    most = chance.choice((0, 2, 6, 20))
    return Grid(
        blocks=tuple(chance.randint(1, 4) for _ in range(count)),
        factors=tuple(chance.choice((2, 4)) if copies_cost else 1 for _ in range(count)),
        forward=forward,
        backward=backward,
        optimizer=optimizer,
        gradient=chance.choice((0, 0, 1, 1, 2, 7)),
        copies_cost=copies_cost,
        room=tuple(chance.randint(0, most) for _ in range(forward + backward + optimizer)),
        peak_max=chance.choice((0, 0, 0, 2, 5)),
    )
