"""Whole states in shared memory: when they are due, where they go, and how a large one is spread over several steps.

A state that the bus cannot carry beside one step is taken in parts: a few parameters each step, each with all its
optimizer state. The records of those steps bring the older parts to the step of the last (`recover`), exactly. Only
memory holds such states; a base on disk is always of one step.
"""

import time
from collections.abc import Callable

import torch

from everstep.capture.measure import AREAS, measure, trained_bytes
from everstep.capture.mover import Mover, offsets
from everstep.capture.snapshot import Camera, Fixed, Picture
from everstep.capture.workbench import WORKBENCH_BYTES
from everstep.errors import TooLittleMemory
from everstep.keeper.link import Link
from everstep.recording.disk_turn import DiskTurn
from everstep.recording.plan import Plan, Planner
from everstep.recording.program import Program
from everstep.recording.under_way import Fill, Late
from everstep.ring import ring as rings
from everstep.ring.areas import TAKEN, Area
from everstep.ring.pen import Extent
from everstep.ring.ring import Ring
from everstep.settings import Settings
from everstep.types import padded, size

ANY_BYTES = 1 << 62
AREA_SPARE_BYTES = 1 << 20
RECORDS_SPARE = 4
"""A new state is due while the ring has still room for so many records."""
WAITING_SHARE = 0.002
"""Of its time, what training may spend waiting until states have left."""
WHOLE_OVERHEAD_MAX = 0.01
"""Whole states at every step may cost so much of it. Above that they are taken in parts, if these cost less."""


WHOLE = (
    "this GPU has no memory to spare for gradients on their way; from now on whole states are taken, which need none. "
    "Settings(source='gradient') keeps to gradients, and training waits for them"
)


class States:
    """`vouch` is told of every entry that is written here, of which step, and whether nothing else holds that."""

    def __init__(
        self, link: Link, program: Program, settings: Settings, mover: Mover, vouch: Callable[[int, int, bool], None],
        *, free_bytes: int, together: bool,
    ) -> None:  # fmt: skip
        self._link, self._program, self._settings, self._mover, self._vouch = link, program, settings, mover, vouch
        self._camera = Camera()
        self.disk = DiskTurn(link, program, together=together)
        self._planner = Planner(mover.bus_bytes_per_s)
        spreads = program.per_parameter and mover.bus_bytes_per_s is not None
        asked = settings.source == "auto" and settings.gradients == "exact" and mover.bus_bytes_per_s is not None
        self._turns = asked and not together  # ranks may be a step apart, and of states memory holds the newest alone
        self._sizes = measure(
            program.roster, program.context, settings, free_bytes + link.left_bytes,
            spreads=spreads, turns=self._turns,
        )  # fmt: skip
        self._fill: Fill | None = None
        self._late: Late | None = None
        self._packs = True
        self._predicted: float | None = None
        self._rounds = 1
        self._record_bytes = 0
        self._costly = False
        """Whether training waits for each state of the memory tier."""
        self._memory_after = 0.0
        self.alone = settings.source == "state"
        """Whether a whole state is taken at every step, and nothing else."""
        self.in_parts = False
        """Whether whole states, one per step, have turned out to cost more than parts of them with gradients would."""

    def affordable(self) -> bool:
        """Whether training has gone on for long enough since it last waited for a state of the memory tier."""
        return time.perf_counter() >= self._memory_after

    @property
    def predicted(self) -> float | None:
        """The part of a step that capture costs, by the schedule; None before enough was measured.

        Gradients travel at every step, a state of the memory tier once in as many steps as the ring holds records.
        """
        return self._predicted

    def begin(self) -> None:
        """There is a ring. Say so if memory will hold no state beside it."""
        dtypes = {parameter.dtype for parameter in self._program.roster.parameters.values()} | {torch.float32}
        self._mover.rehearse(dtypes, rounds=self._settings.gradients == "bf16")
        areas, sizes = self._link.areas, self._sizes
        areas.count = max(areas.count, min(sizes.areas, AREAS[self._settings.source]))
        if areas.count == 1:
            self._link.warn(
                f"no memory tier: it needs at least {size(sizes.least_bytes)}, and of the memory that is free "
                f"{size(sizes.limit_bytes)} may be used. Should the trainer be killed, it resumes from the "
                "disk. Settings(buffer_bytes_max=...) allows more, Settings(gradients='bf16') needs less."
            )

    def ring(self) -> Ring:
        """A new one. Who goes on in the memory of a trainer before has all there is to have, and needs none."""
        if self._sizes.refusal:
            raise TooLittleMemory(self._sizes.refusal)
        made = rings.create(self._sizes.ring_bytes, present=False)
        for word, number in zip((rings.W_COHORT, rings.W_WRITERS), self._program.cohort, strict=True):
            made.say(word, number)
        return made

    def make_room(self) -> None:
        """For states as large as they will probably be."""
        self._link.areas.prepare(self._sizes.state_bytes + AREA_SPARE_BYTES)

    def stepped(self, step: int) -> None:
        self._planner.stepped(time.perf_counter(), self._mover.waited_seconds)
        self.disk.stepped(step)

    def complained(self, complaint: str) -> None:
        """Training waits for its gradients. From the next step on whole states are taken alone, which need no memory on
        the device, if training would wait much less for them and that was left to us. The place for one more is made
        before that."""
        late, turns = self._planner.late(self._sizes.state_bytes), self._turns and self._sizes.areas == AREAS["state"]
        if turns and late is None:
            return  # not known yet
        if not turns or late is None or late > self._waited(self._record_bytes) / 2:
            self._link.warn(complaint)
        elif self._link.areas.grow(AREAS["state"], self._sizes.state_bytes + AREA_SPARE_BYTES):
            self.give_up()
            self.alone, self._record_bytes = True, 0
            self._planner.turned()
            self._link.warn(WHOLE)

    def take(self, step: int, *, to_disk: bool, must: bool = False) -> int | None:
        """The whole state as it is now: its size; None when there is no room. What `must` be is waited for."""
        self.give_up()
        picture = self._camera.take(self._program.roster, self._program.context, self._program.owned)
        area = self._area(picture.nbytes, must=must)
        pieces = picture.pieces({})
        if area is None or not self._room(pieces):
            return None
        fixed = picture.fixed
        plan = self._planner.plan(fixed.described, self._record_bytes, spread=False)
        rested = time.perf_counter() + plan.stall_seconds / WAITING_SHARE
        if self._costly:
            self._memory_after = rested
        if self.alone and plan.predicted is not None:
            self._predicted = self._planner.whole(plan)
            self.in_parts = self._better_in_parts(plan, fixed)
            self.alone = not self.in_parts
        later = self._later(plan, fixed)
        now = tuple(at for at in plan.rounds[0] if at not in later) if later else plan.rounds[0]
        self._mover.copy(area.block, fixed.parcel(now))
        self._copy_brief(area, picture)
        sequence = self._link.put_state(step, step, area, pieces, to_disk=to_disk)
        if sequence < 0:
            return None
        if to_disk:
            self.disk.taken(step, 0.0 if self.alone else rested)
        if later:
            self._late = Late(area, fixed.parcel(tuple(sorted(later))), sequence, step, must)
        else:
            self._vouch(sequence, step, must)
        return picture.nbytes

    def take_part(self, step: int, record_bytes: int) -> bool:
        """Begin a state for the memory tier, or go on with the one begun. True if one was begun: from now on records
        must say all they know, because repair starts in the middle of the log."""
        self._record_bytes = record_bytes
        if self._fill is not None:
            self._go_on(self._fill, step)
            return False
        if not self._due(record_bytes):
            return False
        fixed = self._camera.fixed(self._program.roster)
        plan = self._planner.plan(fixed.described, record_bytes, spread=self._program.per_parameter)
        if not self._holds(plan, record_bytes):
            self._say_too_small(len(plan.rounds), record_bytes)
            plan = self._planner.plan(fixed.described, record_bytes, spread=False)
        self._rounds = len(plan.rounds)
        self._costly = self._rounds == 1 and plan.stall_seconds > 0
        self._predict(plan, record_bytes)
        if self._rounds == 1:
            self.take(step, to_disk=False)
            return False
        area = self._area(fixed.nbytes, must=False)
        if area is None:
            return False
        area.sequence = TAKEN
        self._fill = Fill(area, fixed, plan, step)
        self._go_on(self._fill, step)
        return True

    def before_step(self) -> int | None:
        """The optimizer is about to change everything: what the bus could not carry is packed on the device now.

        Returns a step whose state was given up for that, and that nothing else holds.
        """
        late, self._late = self._late, None
        if late is None:
            return None
        rest = late.parcel
        try:
            self._mover.take("snapshot", late.area.block, rest.described, rest.places, rest.tensors, brief=True)
        except torch.OutOfMemoryError:
            self._link.void(late.sequence)
            self._link.warn(
                f"the state of step {late.step} was given up: the device has no memory to pack it in. From now on "
                "training waits until a state is copied."
            )
            self._packs = False
            return late.step if late.alone else None
        self._vouch(late.sequence, late.step, late.alone)
        return None

    def copy_late(self) -> None:
        """Nobody is about to step: what was to be packed is copied from where it lies."""
        late, self._late = self._late, None
        if late is not None:
            self._mover.copy(late.area.block, late.parcel)
            self._vouch(late.sequence, late.step, late.alone)

    @property
    def late(self) -> set[int]:
        """The entry of a state that is still to be packed."""
        return set() if self._late is None else {self._late.sequence}

    def give_up(self) -> None:
        """Something else than the optimizer changed the state, or one is taken whole: parts of it are of no use."""
        if self._fill is not None:
            self._fill.area.sequence = -1
            self._fill = None

    def _go_on(self, fill: Fill, step: int) -> None:
        self._mover.copy(fill.area.block, fill.fixed.parcel(fill.plan.rounds[fill.done]))
        fill.done += 1
        names = [fill.fixed.described[at].name for at in fill.plan.rounds[fill.done - 1]]
        fill.versions |= {name.removeprefix("model/"): step for name in names if name.startswith("model/")}
        if fill.done < len(fill.plan.rounds):
            return
        self._fill = None
        fill.area.sequence = -1
        picture = self._camera.take(self._program.roster, self._program.context, self._program.owned)
        pieces = picture.pieces({name: version for name, version in fill.versions.items() if version < step})
        if picture.fixed is not fill.fixed or picture.nbytes > fill.area.block.nbytes or not self._room(pieces):
            return
        self._copy_brief(fill.area, picture)
        sequence = self._link.put_state(step, fill.low, fill.area, pieces, to_disk=False)
        if sequence >= 0:
            self._vouch(sequence, step, False)

    def _due(self, record_bytes: int) -> bool:
        """Whether memory needs a newer state, before the records since the last fill the ring."""
        link = self._link
        link.settle()
        if link.areas.count == 1 or link.tally.filling or not self.affordable():
            return False
        spare = max((RECORDS_SPARE + self._rounds) * record_bytes, link.ring.data_bytes // 4)
        return link.tally.newest < 0 or link.pen.used_bytes + spare > link.ring.data_bytes

    def _holds(self, plan: Plan, record_bytes: int) -> bool:
        """Whether the ring has room for the records of two states in parts, the complete one and the next."""
        rounds = len(plan.rounds)
        return rounds == 1 or self._needed(rounds, record_bytes) <= self._link.ring.data_bytes

    def _needed(self, rounds: int, record_bytes: int) -> int:
        return (2 * rounds + 2) * record_bytes

    def _say_too_small(self, rounds: int, record_bytes: int) -> None:
        ring, needed = self._link.ring.data_bytes, self._needed(rounds, record_bytes)
        self._link.warn(
            f"memory does not hold every step: a state takes {rounds} steps to copy, and the records of twice as many "
            f"need {size(needed)}, of which there are {size(ring)}. Settings(buffer_bytes_max=...) allows more, "
            "Settings(gradients='bf16') needs less.",
            kind="memory does not hold every step",
        )

    def _later(self, plan: Plan, fixed: Fixed) -> set[int]:
        """What is packed on the device first. If that has no memory to spare, no more than lies on its workbench: for
        the rest training would wait longer than for what is read in place and late."""
        room = WORKBENCH_BYTES if self._mover.complaint else ANY_BYTES
        found: set[int] = set()
        for at in sorted(plan.snapshots) if self._packs else ():
            if padded(fixed.described[at].nbytes) <= room:
                room -= padded(fixed.described[at].nbytes)
                found.add(at)
        return found

    def _better_in_parts(self, plan: Plan, fixed: Fixed) -> bool:
        """Whether whole states cost too much, and memory has room for the other way, which costs less."""
        whole = self._planner.whole(plan)
        if whole <= WHOLE_OVERHEAD_MAX or not self._program.per_parameter:
            return False
        if self._mover.complaint:  # gradients would wait
            return False
        record_bytes = trained_bytes(self._program.roster)
        parts = self._planner.plan(fixed.described, record_bytes, spread=True)
        assert parts.predicted is not None
        cheaper = parts.predicted.overhead < whole
        surely = self._needed(len(parts.rounds) + 1, record_bytes)  # a step that turns out shorter needs one more
        return cheaper and self._link.areas.count > 1 and surely <= self._link.ring.data_bytes

    def _predict(self, plan: Plan, record_bytes: int) -> None:
        if plan.predicted is not None:
            room = self._link.ring.data_bytes // record_bytes if record_bytes else 0
            every = max(1, room - RECORDS_SPARE - self._rounds)
            rest = plan.stall_seconds / WAITING_SHARE if self._costly else 0.0
            waited = self._waited(record_bytes) if self._mover.complaint else 0.0
            self._predicted = self._planner.cost(plan, record_bytes, every, rest, waited)

    def _waited(self, record_bytes: int) -> float:
        """For gradients, at every step, because the device has no memory to spare."""
        packed = self._settings.gradients == "bf16" or self._program.scaled
        return self._planner.waited(record_bytes, self._sizes.state_bytes, packed=packed)

    def _copy_brief(self, area: Area, picture: Picture) -> None:
        """What may change before the optimizer's next step: buffers, say."""
        if picture.brief:
            described, start = [told for told, _ in picture.brief], picture.fixed.nbytes
            part = Extent(start, 0, area.block.memory[start:], area.block.address + start)
            tensors, places = [tensor for _, tensor in picture.brief], offsets(described)[0]
            self._mover.take("state", part, described, places, tensors, brief=True)
            self._program.context.copied(described, places, part.memory)

    def _area(self, nbytes: int, *, must: bool) -> Area | None:
        """A place for a state. One that is too small is made anew, with room to spare: that takes long."""
        areas, stall = self._link.areas, self._settings.stall_ms_max / 1000
        if not self._link.ready(stall if must else 0.0):
            return None
        room = max(nbytes + nbytes // 64, self._sizes.state_bytes) + AREA_SPARE_BYTES
        deadline = time.monotonic() + (stall if must else 0.0)
        while True:
            self._link.settle()
            found = areas.free(nbytes, room, self._link.tally.newest)
            if found is not None or time.monotonic() >= deadline:
                return found
            if not areas.wait(0.001):
                time.sleep(0.0005)  # the state before is still being copied

    def _room(self, pieces: list[list[bytes | bytearray | memoryview]]) -> bool:
        nbytes = sum(len(memoryview(part)) for piece in pieces for part in piece)
        return self._link.wait_for_room(nbytes + 4096, self._settings.stall_ms_max / 1000)
