"""The same question as an integer program: which bytes are read, set aside and carried in which slot of time.

As in Checkflow: a block of a piece is carried from the live tensor, while its version lives, or from a snapshot that
is created while it lives and resident until carried; a slot carries what the bus can; memory never passes the room.
Nothing is said of when to make a snapshot, how much, in which order, or which piece goes into which round: that is
found.

What the rules lay down is laid down here too. The gradient has its slots before anybody. With pieces of several
versions, a snapshot is drained within the optimizer step it was made for. Where copies cost something besides their
bytes, a snapshot is made just before the optimizer step, drained before the next window of its pieces, and waited for
only at its making; where they do not, all that may be at any time, and this program finds that no other is better.
Bytes may be cut anywhere: the grid makes the best cuts multiples of 64.
"""

from dataclasses import dataclass

import numpy
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tests.unit.tune.grid import SNAPSHOT_SLOTS, Grid

PEAK_WEIGHT = 1e-5
"""Peak decides only between schedules of equal cost."""


@dataclass(frozen=True)
class Best:
    """In slots and blocks, over all rounds together."""

    seconds: float
    stall: float
    peak: float


class Program:
    """Rows and columns, as they are written down."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.whole: list[int] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def column(self, cost: float = 0.0, upper: float = numpy.inf, whole: int = 0) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        for column, value in terms:
            self.rows.append(len(self.low))
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)

    def solve(self) -> numpy.ndarray:
        matrix = coo_array((self.values, (self.rows, self.columns)), shape=(len(self.low), len(self.cost))).tocsr()
        found = milp(
            self.cost,
            integrality=self.whole,
            bounds=Bounds(0, self.upper),
            constraints=LinearConstraint(matrix, self.low, self.high),
            options={"mip_rel_gap": 0},
        )
        assert found.success, found.message
        return found.x


def best(grid: Grid, rounds: int) -> Best:
    """The least cost at which the state can be had in so many rounds.

    A round is its window's slots, one place for waiting, whose length is free, and the slots of the optimizer step.
    """
    program = Program()
    mixed = rounds > 1 and grid.gradient > 0
    places, cycle = grid.step + 1, rounds * (grid.step + 1)
    left, forced = _left(grid)
    peak = program.column(PEAK_WEIGHT, grid.peak_max)
    waits = [program.column(1.0, 0 if at and grid.copies_cost and not mixed else numpy.inf) for at in range(rounds)]
    carried: list[list[tuple[int, float]]] = [[] for _ in range(cycle)]
    resident: list[list[tuple[int, float]]] = [[] for _ in range(cycle)]
    snapshots: list[int] = []
    for blocks, factor in zip(grid.blocks, grid.factors, strict=True):
        versions = [program.column(0.0, 1, 1) for _ in range(rounds if mixed else 1)]
        program.row([(version, 1.0) for version in versions], 1, 1)
        for at, version in enumerate(versions):
            update = at * places + grid.window
            end = (at + 1) * places if mixed else cycle + (0 if grid.copies_cost else grid.window)
            live = range(at * places, update + 1)
            first = update + 1 if grid.copies_cost else at * places
            read = {place: program.column() for place in live}
            made = {place: program.column(SNAPSHOT_SLOTS) for place in range(first, min(end, update + 2))}
            program.row([(c, 1.0) for c in (*read.values(), *made.values())] + [(version, -blocks)], 0, 0)
            for place, column in read.items():
                carried[place].append((column, factor))
            kept: list[tuple[int, float]] = []
            for place in range(first, end):
                held, drained = program.column(), program.column()
                program.row([*kept, *((c, 1.0) for k, c in made.items() if k == place), (held, -1.0)], 0, 0)
                kept = [(held, 1.0), (drained, -1.0)]
                program.row(kept, 0, numpy.inf)
                carried[place % cycle].append((drained, 1.0))
                resident[place % cycle].append((held, 1.0))
            program.row(kept, 0, 0)
            snapshots += made.values()
    for place in range(cycle):
        at, slot = divmod(place, places)
        if slot == grid.window:
            program.row([*carried[place], (waits[at], -1.0)], -numpy.inf, 0)
            free = grid.room[0]
        else:
            slot -= slot > grid.window
            program.row(carried[place], 0, left[slot])
            free = grid.room[(slot - grid.window) % grid.step]
        program.row([*resident[place], (peak, -1.0)], -numpy.inf, free)
    x = program.solve()
    stall = float(x[waits].sum()) + rounds * forced
    return Best(stall + SNAPSHOT_SLOTS * float(x[snapshots].sum()), stall, float(x[peak]))


def _left(grid: Grid) -> tuple[list[int], int]:
    """What the gradient leaves of each slot, and how long backward waits for it."""
    left, gradient = [1] * grid.step, grid.gradient_slots
    for slot in (*range(grid.window, grid.step), *range(grid.forward)):
        taken = min(left[slot], gradient)
        left[slot] -= taken
        gradient -= taken
    return left, gradient
