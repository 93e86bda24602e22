"""Resuming what several ranks train together: they offer what each has in memory, rank 0 looks at the files, decides.

From memory, if every rank's own part of one common step is there and the disk has nothing newer; else from the files of
all writers, whatever part each of them held. Memory that fewer ranks take up than began it does not go on: on the disk
each may have written a share only of what they held alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from everstep.capture.replicas import held, replicas
from everstep.capture.shards import box_of
from everstep.company import Company, meet
from everstep.errors import CannotReplay, Damaged, ReplayDiffers
from everstep.keeper.link import Link
from everstep.layout.replicas import alike
from everstep.recording.program import Program
from everstep.recover import in_step
from everstep.recover.cohort import stand
from everstep.recover.ledger import Ledger
from everstep.recover.onto import onto_program
from everstep.recover.reshard import onto_shards
from everstep.recover.ways import MemoryWay, Way
from everstep.recover.writers import Writers
from everstep.ring.held import Held
from everstep.ring.ring import W_COHORT, W_WRITERS, Ring
from everstep.store import cohort as cohorts
from everstep.store import state
from everstep.store.cohort import Cohort, Peers
from everstep.store.disk import Disk
from everstep.store.memory import Block

Left = tuple[Ring, Mapping[int, Block], Held]
NOTHING = (-1, -1, (0, 1))
ELSEWHERE = (
    "An optimizer that does not work element by element is replayed by the ranks that trained: resume with as many, "
    "laid out as they were, or at a base that 'everstep ls' lists. Settings(source='state') records steps that need no "
    "replay, and go anywhere."
)


@dataclass(frozen=True, slots=True)
class Joint:
    """Where the program is now. `epoch`: of this rank's writer, if its log goes on; `memory`: whether what a trainer
    before left there does. `replica`: which of the ranks that hold the same this one is, and how many they are;
    `shared`: whether they share the writing, or did."""

    reached: int
    epoch: int | None
    memory: bool
    ledger: Ledger | None
    peers: Peers
    cohort: tuple[int, int]
    replica: tuple[int, int] = (0, 1)
    shared: bool = False


class Offer(msgspec.Struct, frozen=True):
    """The epoch a rank writes in, and the steps that it can restore from memory; -1 for none. `cohort` began that."""

    epoch: int
    first: int = -1
    last: int = -1
    cohort: tuple[int, int] = (0, 1)
    in_step: bool = False
    """Whether its optimizers need the other ranks: then all of them start at the same step."""


class Twin(msgspec.Struct, frozen=True, array_like=True):
    """Which ranks hold the same as this one by contract, and what that is, as a digest."""

    ranks: tuple[int, ...]
    held: str


class Decision(msgspec.Struct, frozen=True):
    """`memory`: every rank takes its own part from there, and `goes_on` in it. `disk`: the newest step that files hold
    as a whole."""

    cohort: Cohort
    memory: bool
    goes_on: bool
    disk: int


def join(
    ranks: Company, disk: Disk, url: str, link: Link, program: Program, step: int | None, *, strict: bool
) -> Joint:
    """Bring the program to the newest step that all ranks can have, or to `step`; a new run begins at 0.

    Ranks that hold the same then share the writing, each anew: a log of other shares does not go on.
    """
    joint = _join(ranks, disk, url, link, program, step, strict=strict)
    twins = replicas(program.model, program.roster) if program.per_parameter else ()
    twin = Twin(twins, held(program.roster) if len(twins) > 1 else "")
    said = _met(ranks, "twins", _paired, msgspec.json.encode(twin).decode())
    replica = msgspec.json.decode(said, type=tuple[tuple[int, int], ...])[ranks.rank]
    shared = replica[1] > 1 or (joint.memory and _was_shared(link.left()))
    return replace(joint, replica=replica, shared=shared, epoch=joint.epoch if replica[1] == 1 else None)


def _paired(said: list[str]) -> str:
    twins = [msgspec.json.decode(text, type=Twin) for text in said]
    return msgspec.json.encode(alike([(twin.ranks, twin.held) for twin in twins])).decode()


def _join(
    ranks: Company, disk: Disk, url: str, link: Link, program: Program, step: int | None, *, strict: bool
) -> Joint:
    left = link.left() if step is None else None
    offer = Offer(link.epoch, *_offered(left, program), in_step=in_step.needed(program.roster))
    said = _met(ranks, "cohort", lambda offers: _decide(disk, url, step, offers), msgspec.json.encode(offer).decode())
    decision = msgspec.json.decode(said, type=Decision)
    cohort, peers = decision.cohort, Peers(disk, decision.cohort.epochs)
    ours = cohort.number, len(cohort.epochs)
    if decision.memory and left is not None:
        ledger = _from_memory(left, cohort.step, program, link, ranks, strict=strict)
        if (
            _met(ranks, "memory", lambda told: "no" if "no" in told else "yes", "no" if ledger is None else "yes")
            == "yes"
        ):
            return Joint(cohort.step, None, decision.goes_on, ledger, peers, ours)
    if not cohort.before:
        return Joint(0, None, False, None, peers, ours)
    writers = Writers(disk, url, cohort.before, decision.disk)
    found, same = _from_disk(writers, program, ranks, strict=strict)
    _met(ranks, "loaded", lambda _: "", "")  # nobody writes, and prunes, before all have read
    return Joint(decision.disk, cohort.before[ranks.rank] if same else None, False, found, peers, ours)


def _met(ranks: Company, key: str, decide: Callable[[list[str]], str], text: str) -> str:
    return decide([text]) if ranks.world == 1 else meet(ranks, key, decide, text)


def _from_disk(writers: Writers, program: Program, ranks: Company, *, strict: bool) -> tuple[Ledger, bool]:
    """The program at the step of the writers, and whether this rank's own log may go on."""
    roster, context = program.roster, program.context
    if not in_step.needed(roster):
        return onto_shards(writers, roster, context, ranks, alone=ranks.world == 1, strict=strict)
    if ways := in_step.ways(writers, roster, context, ranks):
        return onto_program(ways, roster, context, strict=strict, in_step=True), True
    try:
        return onto_shards(writers, roster, context, ranks, alone=ranks.world == 1, strict=strict)
    except (CannotReplay, ReplayDiffers) as unfit:
        raise CannotReplay(f"{unfit} {ELSEWHERE}") from unfit


def _from_memory(left: Left, step: int, program: Program, link: Link, ranks: Company, *, strict: bool) -> Ledger | None:
    """The program at `step`, from what this rank's trainer before left; None when it proves unfit."""
    way: Way = _until(left, step)
    together = in_step.needed(program.roster)
    if together:
        way = in_step.InStep(way, ranks)
    try:
        return onto_program([way], program.roster, program.context, strict=strict, in_step=together)
    except (Damaged, ReplayDiffers) as unfit:
        link.warn(f"memory was set aside: {unfit}")
        return None


def _offered(left: Left | None, program: Program) -> tuple[int, int, tuple[int, int]]:
    """The steps that memory can restore, if it holds exactly what the program has, and who began it."""
    if left is None:
        return NOTHING
    ring, areas, held = left
    try:
        table, said, _ = state.parse(ring.pieces(held.state), areas[held.state.area].nbytes)
    except (Damaged, KeyError):
        return NOTHING
    there = {item.tensor.name: item.tensor.box for item in table if item.tensor.name.startswith("model/")}
    here = {f"model/{name}": box_of(name, parameter) for name, parameter in program.roster.parameters.items()}
    same = there == here and said.content.layout == program.roster.layout
    return (held.state.step, held.step, (ring.word(W_COHORT), ring.word(W_WRITERS))) if same else NOTHING


def _decide(disk: Disk, url: str, step: int | None, said: list[str]) -> str:
    """What rank 0 makes of the offers and the files. The cohort is durable when this returns."""
    offers = [msgspec.json.decode(text, type=Offer) for text in said]
    found = stand(disk, url, step)
    number = 1 + max((cohort.number for cohort in cohorts.load_all(disk)), default=0)
    last = min(offer.last for offer in offers)
    memory = all(0 <= offer.first <= last for offer in offers) and last >= (-1 if found is None else found.step)
    begun = {offer.cohort for offer in offers}
    memory = memory and len(begun) == 1  # else they may be of branches that parted
    if any(offer.in_step for offer in offers):
        memory = memory and len({offer.first for offer in offers}) == 1
    reached = last if memory else 0 if found is None else found.step
    opened = datetime.now(UTC).isoformat(timespec="seconds")
    epochs = tuple(offer.epoch for offer in offers)
    cohort = Cohort(number, epochs, () if found is None else found.epochs, reached, opened)
    cohorts.begin(disk, cohort)
    goes_on = memory and all(writers == len(offers) for _, writers in begun)
    return msgspec.json.encode(Decision(cohort, memory, goes_on, 0 if found is None else found.step)).decode()


def _was_shared(left: Left | None) -> bool:
    """Whether the trainer before wrote a share of its state only."""
    if left is None:
        return False
    ring, areas, held = left
    return state.parse(ring.pieces(held.state), areas[held.state.area].nbytes)[1].owned is not None


def _until(left: Left, step: int) -> MemoryWay:
    """The way through memory that ends at `step`; what one rank has beyond it, not all have."""
    ring, areas, held = left
    records = tuple(entry for entry in held.records if entry.step <= step)
    return MemoryWay(ring, areas, replace(held, records=records, step=step))
