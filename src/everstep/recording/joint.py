"""Resuming what several ranks train together: from the memory that each has of a trainer before it, if all have that of
one common step (`offers`); else from the files of all writers, whatever part each of them held. Rank 0 decides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec

from everstep.capture.replicas import held, replicas
from everstep.company import Company, meet
from everstep.errors import CannotReplay, Damaged, ReplayDiffers
from everstep.keeper.link import Link
from everstep.layout.replicas import alike
from everstep.recording.offers import Offer, Verdict, agreed, offered, was_shared
from everstep.recording.program import Program
from everstep.recover import in_step
from everstep.recover.cohort import Stand, stand
from everstep.recover.ledger import Ledger
from everstep.recover.onto import onto_program
from everstep.recover.reshard import onto_shards
from everstep.recover.ways import MemoryWay, Way
from everstep.recover.writers import Writers
from everstep.ring import held as memory_tier
from everstep.ring.held import Left
from everstep.store import cohort as cohorts
from everstep.store.cohort import Cohort, Peers
from everstep.store.disk import Disk

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


class Twin(msgspec.Struct, frozen=True, array_like=True):
    """Which ranks hold the same as this one by contract, and what that is, as a digest."""

    ranks: tuple[int, ...]
    held: str


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
    shared = replica[1] > 1 or (joint.memory and was_shared(link.left()))
    return replace(joint, replica=replica, shared=shared, epoch=joint.epoch if replica[1] == 1 else None)


def _paired(said: list[str]) -> str:
    twins = [msgspec.json.decode(text, type=Twin) for text in said]
    return msgspec.json.encode(alike([(twin.ranks, twin.held) for twin in twins])).decode()


def _join(
    ranks: Company, disk: Disk, url: str, link: Link, program: Program, step: int | None, *, strict: bool
) -> Joint:
    files = Files(disk, url, step)
    left = link.left() if step is None else None
    said = _met(ranks, "memory", files.verdict, msgspec.json.encode(offered(left, program)).decode())
    verdict = msgspec.json.decode(said, type=Verdict)
    taken = None
    if left is not None and verdict.step >= 0:
        taken = _from_memory(left, verdict.step, program, link, ranks, strict=strict)
    if verdict.step >= 0 and _met(ranks, "taken", _all_did, "no" if taken is None else "yes") == "no":
        verdict, taken = Verdict(), None
    if not verdict.goes_on:
        link.anew(hurry=taken is not None)
    said = _met(ranks, "cohort", lambda epochs: files.begin(epochs, verdict), str(link.epoch))
    cohort = msgspec.json.decode(said, type=Cohort)
    peers = Peers(disk, cohort.epochs)
    ours = cohort.number, len(cohort.epochs)
    if taken is not None:
        return Joint(cohort.step, None, verdict.goes_on, taken, peers, ours)
    if not cohort.before:
        return Joint(0, None, False, None, peers, ours)
    writers = Writers(disk, url, cohort.before, cohort.step)
    found, same = _from_disk(writers, program, ranks, strict=strict)
    _met(ranks, "loaded", lambda _: "", "")  # nobody writes, and prunes, before all have read
    return Joint(cohort.step, cohort.before[ranks.rank] if same else None, False, found, peers, ours)


def _met(ranks: Company, key: str, decide: Callable[[list[str]], str], text: str) -> str:
    return decide([text]) if ranks.world == 1 else meet(ranks, key, decide, text)


def _all_did(said: list[str]) -> str:
    return "no" if "no" in said else "yes"


class Files:
    """What rank 0 makes of the run's files and of what the others say."""

    def __init__(self, disk: Disk, url: str, step: int | None) -> None:
        self._disk, self._url, self._step = disk, url, step
        self._found: Stand | None = None

    def verdict(self, said: list[str]) -> str:
        """Of the offers that all make."""
        offers = [msgspec.json.decode(text, type=Offer) for text in said]
        return msgspec.json.encode(agreed(offers, self._newest)).decode()

    def begin(self, said: list[str], verdict: Verdict) -> str:
        """A cohort of the epochs that all are to write in; it is durable when this returns."""
        if verdict.step < 0:  # keepers may just have written what trainers before left
            self._newest()
        found, epochs = self._found, tuple(map(int, said))
        number = 1 + max((cohort.number for cohort in cohorts.load_all(self._disk)), default=0)
        reached = verdict.step if verdict.step >= 0 else 0 if found is None else found.step
        opened = datetime.now(UTC).isoformat(timespec="seconds")
        cohort = Cohort(number, epochs, () if found is None else found.epochs, reached, opened)
        cohorts.begin(self._disk, cohort)
        return msgspec.json.encode(cohort).decode()

    def _newest(self) -> int:
        """The newest step that files hold as a whole, or the one that is wanted; -1 for none."""
        self._found = stand(self._disk, self._url, self._step)
        return -1 if self._found is None else self._found.step


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
    ring, areas, _ = left
    found = memory_tier.held(ring, step)
    assert found is not None
    way: Way = MemoryWay(ring, areas, found)
    together = in_step.needed(program.roster)
    if together:
        way = in_step.InStep(way, ranks)
    try:
        return onto_program([way], program.roster, program.context, strict=strict, in_step=together)
    except (Damaged, ReplayDiffers) as unfit:
        link.warn(f"memory was set aside: {unfit}")
        return None
