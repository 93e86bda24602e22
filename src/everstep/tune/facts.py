"""What was measured: the numbers that every choice of `tune` is made from.

A step is forward, backward, optimizer, one after the other. The state that an optimizer step made can be read in place
from its end until the next one begins: that is the window. The bus carries one copy at a time.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from everstep.types import ALIGN

SLOP = 1e-12
"""Differences below this share of a step are rounding of floats, not time."""

Room = tuple[tuple[float, int], ...]
"""From this many seconds after the optimizer step's start on, this many bytes are free below the peak of a step."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of one parameter with all their optimizer state: copied at one version, or worthless.

    A large parameter is better given as several pieces, each some of its elements: a piece is never spread over steps.
    `copies` is how many separate memory copies it takes, one per tensor.
    """

    name: str
    nbytes: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """One trainer's state, its step, and its buses, as measured without any copying going on."""

    pieces: tuple[Piece, ...]
    bus_bytes_per_s: float
    """Device to host, with chunks of the size in use: what a chunk costs is in here."""
    copy_seconds: float
    """What each separate copy costs besides its bytes."""
    device_bytes_per_s: float
    """Device to device, one way: a snapshot reads and writes, so it takes twice its bytes."""
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    gradient_bytes: int
    """Copied every step, packed, before anything else, during the optimizer step and the next forward. 0: none are."""
    interference: float
    """Seconds of training lost per second in which bytes move over the bus."""
    room: Room
    """Memory that snapshots can use without raising the peak; activations are free when the optimizer step begins."""

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ValueError(f"Facts.{fault}")

    @property
    def state_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def window_seconds(self) -> float:
        """How long a version of the state can be read in place."""
        return self.forward_seconds + self.backward_seconds

    @property
    def step_seconds(self) -> float:
        return self.window_seconds + self.optimizer_seconds

    @property
    def gradient_seconds(self) -> float:
        """Packed, the gradient is one copy."""
        return self.gradient_bytes / self.bus_bytes_per_s + (self.copy_seconds if self.gradient_bytes else 0.0)

    def direct_seconds(self, piece: Piece) -> float:
        """Bus time of a piece read in place. From a snapshot, which is packed, only its bytes count."""
        return piece.nbytes / self.bus_bytes_per_s + piece.copies * self.copy_seconds


def _faults(facts: Facts) -> Iterator[str]:
    """What cannot have been measured, the first of it in words."""
    if not facts.pieces:
        yield "pieces is empty: there is nothing to copy"
    names: set[str] = set()
    for piece in facts.pieces:
        if piece.nbytes < 1 or piece.copies < 1:
            yield f"pieces: {piece.name!r} has {piece.nbytes} bytes in {piece.copies} copies; leave out what has none"
        if piece.name in names:
            yield f"pieces: two are named {piece.name!r}"
        names.add(piece.name)
    for name in ("bus_bytes_per_s", "device_bytes_per_s"):
        if not 0 < getattr(facts, name) < math.inf:
            yield f"{name} must be above 0, is {getattr(facts, name)!r}"
    for name in (
        "copy_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "gradient_bytes", "interference",
    ):  # fmt: skip
        if not 0 <= getattr(facts, name) < math.inf:
            yield f"{name} must not be negative, is {getattr(facts, name)!r}"
    if facts.device_bytes_per_s < 2 * facts.bus_bytes_per_s:
        yield (
            f"device_bytes_per_s is {facts.device_bytes_per_s!r}, less than twice bus_bytes_per_s "
            f"({facts.bus_bytes_per_s!r}): a snapshot would cost more than waiting for the bus. Measure both again"
        )
    if facts.step_seconds <= 0:
        yield "forward_seconds, backward_seconds and optimizer_seconds are all 0: measure a step"
    yield from _room_faults(facts)


def _room_faults(facts: Facts) -> Iterator[str]:
    starts = [start for start, _ in facts.room]
    if not starts or starts[0] != 0:
        yield f"room must begin at 0 seconds, where the optimizer step does, not {facts.room!r}"
    if any(not one < two for one, two in itertools.pairwise(starts)):
        yield f"room must be in order of time, not {facts.room!r}"
    if starts[-1] >= facts.step_seconds:
        yield f"room has a phase at {starts[-1]!r} s, after the step of {facts.step_seconds!r} s has ended"
    if any(free < 0 for _, free in facts.room):
        yield f"room must not be negative, is {facts.room!r}"


def floored(nbytes: float) -> int:
    """Whole units of the alignment: where a piece may be cut. What floats lost just below one is given back."""
    return max(0, math.floor(nbytes / ALIGN * (1 + SLOP) + 1e-9)) * ALIGN
