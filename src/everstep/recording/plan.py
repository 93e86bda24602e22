"""What of a state is copied in which step, and what that costs: the schedule of `tune` for this program and device.

Pure but for its inputs, which were measured: the bus when memory was pinned, the step while training ran.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.tune import schedule as schedules
from everstep.tune.facts import Facts, Piece
from everstep.tune.window import window
from everstep.types import Tensor

DEVICE_BYTES_PER_S = 2.0e12
COPY_SECONDS = 2e-6
INTERFERENCE = 0.007
"""Seconds that training loses per second of copying beside it: 0.18 ms of 27 on an H200 at a fixed clock."""
COUNTED = 8
"""Steps are timed so many at a time: Python may run ahead of the device for a few, and then waits for it."""
STEP_SECONDS_MIN = 1e-4
SNAPSHOT_SHARE = 1 / 6
"""Of the time between two optimizer steps, how long a snapshot may stay on the device: activations are small then."""
BUS_SHARE = 0.93
"""Of the bus, what a state counts on that has to be there in time beside gradients: who is late makes training wait."""
TOLERANCE = 0.05
"""A plan takes ten milliseconds to make: it is kept while a step is as long as it was, give or take this part."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`rounds`: the tensors of each step, by index. `snapshots`: those of one round that are packed on the device
    first, because the bus cannot carry them before the optimizer changes them."""

    rounds: tuple[tuple[int, ...], ...]
    snapshots: frozenset[int]
    predicted: schedules.Schedule | None
    stall_seconds: float = 0.0
    """How long training waits for it, all rounds together."""


class Planner:
    """Told of every step; plans anew when what it knows has changed much."""

    def __init__(self, bus_bytes_per_s: float | None) -> None:
        self._bus = bus_bytes_per_s
        self._seconds: deque[float] = deque(maxlen=4)
        self._waits: deque[float] = deque(maxlen=4)
        self._steps = -1
        self._began = self._waited = 0.0
        self._made: dict[bool, tuple[tuple[int, int], float, Plan]] = {}

    def stepped(self, now: float, waited: float = 0.0) -> None:
        """A step has ended. What training has `waited` for copies is not its own: a plan that holds a step to be as
        long as its copies made it would never be a better one."""
        self._steps += 1
        own = now - waited
        if self._steps == COUNTED:
            self._seconds.append(max(own - self._began, STEP_SECONDS_MIN) / COUNTED)
            self._waits.append((waited - self._waited) / COUNTED)
        if self._steps in (0, COUNTED):
            self._steps, self._began, self._waited = 0, own, waited

    def turned(self) -> None:
        """What training waited until now was for something else."""
        self._waits.clear()
        self._steps = -1

    def plan(self, described: Sequence[Tensor], gradient_bytes: int, *, spread: bool) -> Plan:
        """The whole state in one step, until enough is known; spread over several if it may be and must."""
        whole = Plan((tuple(range(len(described))),), frozenset(), None)
        if self._bus is None or not self._seconds:
            return whole
        step, key = statistics.median(self._seconds), (len(described), gradient_bytes)
        known = self._made.get(spread)
        if known is None or known[0] != key or abs(known[1] - step) > TOLERANCE * step:
            known = key, step, self._planned(described, gradient_bytes, step, spread=spread)
            self._made[spread] = known
        return known[2]

    def cost(self, plan: Plan, gradient_bytes: int, every: int, rest: float = 0.0, waited: float = 0.0) -> float:
        """The part of a step that gradients cost at each, those seconds included that are `waited` for them, and the
        plan's rounds once in `every` steps and no more often than after a `rest` of so many seconds."""
        assert self._bus is not None
        assert plan.predicted is not None
        step, rounds = statistics.median(self._seconds), len(plan.rounds)
        alone = INTERFERENCE * gradient_bytes / self._bus / step
        states = max(0.0, plan.predicted.overhead - alone) * rounds / max(every, rounds, rest / step)
        return waited / step + alone + states

    def whole(self, plan: Plan) -> float:
        """The part of a step that it costs to take all of a state at each: what the plan says, and what training has
        waited beyond that in each of the last few times of `COUNTED` steps. Beside a program that keeps the driver busy
        the bus is slower than it was when it was measured, and nobody knows by how much before."""
        assert plan.predicted is not None
        seen = min(self._waits) if len(self._waits) == self._waits.maxlen else 0.0
        beyond = max(0.0, seen - plan.predicted.stall_seconds)
        return plan.predicted.overhead + beyond / statistics.median(self._seconds)

    def waited(self, gradient_bytes: int, state_bytes: int, *, packed: bool) -> float:
        """Seconds of each step on a device without memory to spare: training goes on when its gradients have left.

        Read in place, they travel while the optimizer steps; `packed` piece by piece, they have left before it does.
        """
        assert self._bus is not None
        step, travel = statistics.median(self._seconds), gradient_bytes / self._bus
        return travel if packed else max(0.0, travel - _optimizer_seconds(state_bytes, gradient_bytes, step))

    def late(self, nbytes: int) -> float | None:
        """Seconds that training would wait for so much, were it to travel beside each step; None while unknown."""
        if self._bus is None or not self._seconds:
            return None
        return max(0.0, nbytes / self._bus - statistics.median(self._seconds))

    def _planned(self, described: Sequence[Tensor], gradient_bytes: int, step: float, *, spread: bool) -> Plan:
        pieces = _pieces(described)
        facts = self._facts(described, pieces, gradient_bytes, step)
        return _in_parts(facts, pieces) if spread else _at_once(facts, pieces)

    def _facts(
        self, described: Sequence[Tensor], pieces: dict[str, list[int]], gradient_bytes: int, step: float
    ) -> Facts:
        assert self._bus is not None
        state_bytes = sum(tensor.nbytes for tensor in described)
        optimizer = _optimizer_seconds(state_bytes, gradient_bytes, step)
        return Facts(
            tuple(Piece(name, sum(described[at].nbytes for at in held), len(held)) for name, held in pieces.items()),
            self._bus, COPY_SECONDS, DEVICE_BYTES_PER_S, step - optimizer, 0.0,  # backward writes to other gradients
            optimizer, gradient_bytes, INTERFERENCE, ((0.0, 1 << 60),),
        )  # fmt: skip


def _optimizer_seconds(state_bytes: int, gradient_bytes: int, step: float) -> float:
    """How long the optimizer takes: it reads and writes the state, and reads the gradients."""
    return min(0.2 * step, (2 * state_bytes + gradient_bytes) / (1.5 * DEVICE_BYTES_PER_S))


def _in_parts(facts: Facts, pieces: dict[str, list[int]]) -> Plan:
    """The fewest rounds that training does not wait for."""
    found = schedules.schedule(facts)
    if found.spread > 1:
        facts = _careful(facts)
        found = schedules.schedule(facts)
    rounds = tuple(
        tuple(at for name in dict.fromkeys(copy.name for copy in copies) for at in pieces[name])
        for copies in found.rounds
    )
    return Plan(rounds, frozenset(), found, _waiting(facts, found))


def _at_once(facts: Facts, pieces: dict[str, list[int]]) -> Plan:
    """One round, part of it packed if need be."""
    if facts.gradient_bytes:
        packing = schedules.schedule(_beside(_careful(facts)), spread=2)
        facts = _beside(facts)
        found = schedules.schedule(facts, spread=2)
    else:
        packing = schedules.schedule(_careful(facts), spread=1)
        found = schedules.schedule(facts, spread=1)
    late = {copy.name for copies in packing.rounds for copy in copies if copy.way == "snapshot"}
    snapshots = frozenset(at for name in late for at in pieces[name])
    everything = tuple(sorted(at for held in pieces.values() for at in held))
    return Plan((everything,), snapshots, found, _waiting(facts, found))


def _waiting(facts: Facts, found: schedules.Schedule) -> float:
    """For the state alone, all rounds together."""
    return (found.stall_seconds - window(facts).stall_seconds) * found.spread


def _careful(facts: Facts) -> Facts:
    return replace(facts, bus_bytes_per_s=BUS_SHARE * facts.bus_bytes_per_s)


def _beside(facts: Facts) -> Facts:
    """For one whole state now and then, among steps whose gradients go first: the window without them.

    Its snapshot travels ahead of the next gradient, and is gone before activations have grown to half their size.
    """
    left = facts.window_seconds - min(facts.gradient_seconds, 0.9 * facts.window_seconds)
    gone = facts.optimizer_seconds + min(SNAPSHOT_SHARE * facts.window_seconds, 0.9 * left)
    return replace(facts, gradient_bytes=0, forward_seconds=left, room=((0.0, 1 << 60), (gone, 0)))


def _pieces(described: Sequence[Tensor]) -> dict[str, list[int]]:
    """Which tensors belong to which parameter: they must be of one version. Everything else is one more piece."""
    names = [tensor.name.removeprefix("model/") for tensor in described if tensor.name.startswith("model/")]
    known = set(names)
    found: dict[str, list[int]] = {name: [] for name in names}
    for at, tensor in enumerate(described):
        name = tensor.name.removeprefix("model/") if tensor.name.startswith("model/") else owner(tensor.name, known)
        found.setdefault(name, []).append(at)
    return found


def owner(name: str, known: set[str]) -> str:
    """The parameter that a tensor optimizer/KEY/PARAMETER/... belongs to; empty when there is none."""
    rest = name.split("/")[2:]
    for end in range(len(rest), 0, -1):
        if (found := "/".join(rest[:end])) in known:
            return found
    return ""
