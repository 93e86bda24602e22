"""What a training program holds: `open` and `Run`. Wires capture, keeper and recover together."""

import atexit
import os
import secrets
import signal
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self

from everstep import __version__
from everstep.capture.context import Context, Stateful
from everstep.capture.mover import mover
from everstep.capture.roster import Model, Optimizers, call_the_roll
from everstep.company import Company, company, meet
from everstep.errors import Damaged, EverstepError, Misuse, NotAcknowledged, ReplayDiffers
from everstep.keeper.health import Health
from everstep.keeper.link import Link
from everstep.layout.spec import Spec
from everstep.log.inventory import survey
from everstep.recording import durable
from everstep.recording.joint import Joint, join
from everstep.recording.program import Program, laid_out
from everstep.recording.recording import Recording
from everstep.recording.room import room
from everstep.recover import choose
from everstep.recover.in_step import by_itself
from everstep.recover.ledger import Ledger
from everstep.recover.onto import onto_program
from everstep.recover.ways import DiskWay, MemoryWay, Way
from everstep.settings import Settings
from everstep.store import cohort as cohorts
from everstep.store import reserve
from everstep.store.cohort import Peers
from everstep.store.disk import LocalDisk, created
from everstep.store.manifest import Identity, load_identity, start_identity
from everstep.types import Local
from everstep.url import local_path

CLOSE_SECONDS = 60.0

_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()


def open(  # noqa: A001 everstep.open, as in DESIGN
    url: str | os.PathLike[str],
    *,
    model: Model,
    optimizer: Optimizers,
    state: Mapping[str, Stateful] | None = None,
    spec: Spec | Mapping[str, Local] | None = None,
    settings: Settings | None = None,
) -> "Run":
    """Open a run for training, or begin one. Nothing is read into the model before `resume()`.

    `spec` says which parts of which tensors are here, where plain tensors are parts: a Spec for all ranks, or what this
    one holds, by name. DTensors say it themselves.
    """
    _end_gently()
    ranks = company()
    roster = call_the_roll(model, optimizer)
    if spec is not None:
        roster.layout = {**roster.layout, **laid_out(spec, roster, ranks.rank, ranks.world)}
    context = Context(roster, state or {})
    context.changed()  # what cannot be recorded is refused here, before anything exists
    path = local_path(url)
    chosen = settings or Settings()
    run = _founded(path) if ranks.world == 1 else meet(ranks, "run", lambda said: _one(path, said), path)
    disk = created(path)
    try:
        link = Link(os.path.abspath(path), run, ranks.rank, opened=_now(), settings=chosen)
        if ranks.rank == 0:
            reserve.keep(disk)
    except BaseException:
        disk.release()
        raise
    return Run(path, disk, link, Program(model, optimizer, roster, context), ranks, chosen)


class Run:
    """One training run in this process. Call `resume` once, then `commit` after every optimizer step, then `close`."""

    def __init__(
        self, url: str, disk: LocalDisk, link: Link, program: Program, ranks: Company, settings: Settings
    ) -> None:
        self._url = url
        self._disk = disk
        self._link = link
        self._program = program
        self._ranks = ranks
        self._peers = Peers(disk, ())
        self._settings = settings
        self._recording: Recording | None = None
        self._pid = os.getpid()
        self._closed = False
        self._ledger: Ledger | None = None
        _runs.add(self)

    def resume(self, step: int | None = None) -> int:
        """Bring model, optimizer and `state=` to the newest step, or to `step`, and return the number of steps done.

        0 for a new run. An older step begins a new branch; the old one stays until it is pruned. Should a trainer have
        died on this host moments ago, its newest step comes from memory, before any file is read.
        """
        self._usable()
        if self._recording is not None:
            raise Misuse("resume() was called twice. A run resumes once, before its first step.")
        layout = self._program.roster.layout
        together = self._ranks.world > 1 or bool(layout) or bool(cohorts.load_all(self._disk))
        joint = self._join(step) if together else None
        memory = self._from_memory(step) if joint is None else joint.reached if joint.memory else None
        epoch, replayed, reached = (None, None, memory) if memory is not None else self._from_disk(step, joint)
        self._program.arrived(restored=self._ledger is not None)
        recording = Recording(
            self._link, self._program, self._settings, mover(self._program.roster.parameters.values()),
            free_bytes=room(self._ranks), together=self._ranks.world > 1,
        )  # fmt: skip
        if replayed is not None and self._ledger is not None:
            log_bytes = sum(record.frame.nbytes for record in replayed.records)
            recording.resumed(replayed.base.nbytes, log_bytes, len(replayed.records), self._ledger.replay_seconds)
        fresh = joint is not None and epoch is None and memory is None  # then it begins with a base
        changed = self._ledger.changed if self._ledger is not None and not fresh else None
        if memory is not None and joint is not None and joint.shared:
            changed = changed or "the ranks share the writing anew"
        assert reached is not None
        recording.begin(reached, epoch, memory=memory is not None, changed=changed)
        self._recording = recording
        return recording.step

    def commit(self) -> int:
        """Make the step just taken recoverable. Returns once it is handed over; `acknowledged` says what is safe."""
        self._usable()
        return self._running().commit()

    def acknowledged(self, tier: Literal["memory", "disk"] = "disk") -> int:
        """The newest step that survives what the tier promises to survive; -1 for none yet.

        "memory": this process may crash or be killed. "disk": the host may lose power. Where several ranks train, the
        disk's is the newest that all of them have there.
        """
        if tier not in ("memory", "disk"):
            raise Misuse(f"acknowledged({tier!r}): this run has two tiers, 'memory' and 'disk'.")
        self._running()
        return min(self._link.acknowledged, self._peers.acknowledged) if tier == "disk" else self._link.memory

    def wait(self, step: int | None = None, timeout: float | None = None) -> int:
        """Wait until `step`, the newest committed by default, is on disk, and return the newest that is."""
        began = time.monotonic()
        wanted = durable.wait(self._running(), self._link, step, timeout)
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        if not self._peers.wait(wanted, left):
            raise NotAcknowledged(
                f"step {wanted} is on disk here, but the newest that all ranks have is {self._peers.acknowledged}. "
                f"Rank {self._peers.slowest} is behind: see its health."
            )
        return self.acknowledged()

    @property
    def health(self) -> Health:
        """How far the run is safe and what stands in its way."""
        self._running()
        return self._link.health

    @property
    def predicted(self) -> float | None:
        """What the schedule expects capture to cost, as a part of the training step; None where nothing is planned."""
        return self._running().predicted

    @property
    def ledger(self) -> Ledger | None:
        """Where every restored item came from; None for a new run."""
        return self._ledger

    def close(self) -> None:
        """Write what is committed and let the run go. Closing twice does nothing."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        try:
            if self._recording is not None:
                health = durable.close(self._recording, self._link, CLOSE_SECONDS)
            else:
                health = self._link.close(ended=self._link.end(CLOSE_SECONDS))
            recorded = -1 if self._recording is None else self._recording.recorded
            if health is not None and health.acknowledged < recorded and health.state != "fenced":
                durable_step = f"step {health.acknowledged}" if health.acknowledged >= 0 else "no step"
                raise NotAcknowledged(
                    f"{self._url}: closed with {durable_step} on disk, but {health.committed} committed"
                    f"{f' ({health.error})' if health.error else ''}.{self._left_in_memory(health)}"
                )
        finally:
            self._disk.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except EverstepError:
            if kind is None:  # the error that ended training is the one to show
                raise

    def _left_in_memory(self, health: Health) -> str:
        if health.memory <= health.acknowledged:
            return ""
        return (
            f" Step {health.memory} stays in this host's memory: resume() here within "
            f"{self._settings.linger_seconds:.0f} s goes on from it."
        )

    # Beginning.

    def _from_memory(self, step: int | None) -> int | None:
        """Resume from what a dead trainer left in memory; None when there is nothing, or another step is wanted."""
        left = self._link.left()
        if left is None or (step is not None and step != left[2].step):
            return None
        try:
            self._place([MemoryWay(*left)])
        except (Damaged, ReplayDiffers) as unfit:
            self._link.warn(f"memory was set aside: {unfit}")
            return None
        return left[2].step

    def _join(self, step: int | None) -> Joint:
        strict = self._settings.unmatched == "refuse"
        joint = join(self._ranks, self._disk, self._url, self._link, self._program, step, strict=strict)
        self._ledger, self._peers = joint.ledger, joint.peers
        self._program.replica, self._program.cohort = joint.replica, joint.cohort
        return joint

    def _from_disk(self, step: int | None, joint: Joint | None) -> tuple[int | None, choose.Route | None, int]:
        """The branch that goes on, the way it was reached, and the step; a new run has neither and begins at 0."""
        if joint is not None:
            return joint.epoch, None, joint.reached
        self._link.anew(hurry=False)
        inventory = survey(self._disk, self._url)
        routes = choose.routes(inventory, step)
        if not routes:
            return None, None, 0
        self._place([DiskWay(self._disk, 0, route) for route in routes])
        return inventory.epoch, routes[0], routes[0].step

    def _place(self, ways: Sequence[Way]) -> None:
        strict = self._settings.unmatched == "refuse"
        roster, context = self._program.roster, self._program.context
        self._ledger = onto_program(ways, roster, context, strict=strict, in_step=by_itself(roster))

    def _running(self) -> Recording:
        if self._recording is None:
            raise Misuse("call resume() first: it decides which step the run continues from.")
        return self._recording

    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise Misuse("this process was forked from the one that opened the run; only that one may write it.")
        if self._closed:
            raise Misuse("the run is closed. Open it again to go on.")

    def _forked(self) -> None:
        """In a forked child: let go of the line, so that the keeper sees when the trainer itself ends."""
        if not self._closed:
            self._closed = True
            self._link.drop()
            if self._recording is not None:
                self._recording.leave()


def _one(path: str, said: list[str]) -> str:
    """The run that all ranks are about to open."""
    others = {rank: other for rank, other in enumerate(said) if other != path}
    if others:
        rank, other = next(iter(others.items()))
        raise Misuse(
            f"rank 0 opens {path}, rank {rank} opens {other}. All ranks open one run together; give all the same path."
        )
    return _founded(path)


def _founded(path: str) -> str:
    """The run in this directory, begun if there is none: its identity."""
    disk = created(path)
    try:
        return _identity(disk, path).run
    finally:
        disk.release()


def _identity(disk: LocalDisk, path: str) -> Identity:
    if "run.json" not in disk.names(""):
        strangers = [name for name in disk.names("") if not name.startswith(".")]
        if strangers:
            raise Misuse(
                f"{path}: this directory holds other files ({strangers[0]!r}) and no run. Choose a new or empty one."
            )
        start_identity(disk, Identity(secrets.token_hex(16), _now(), __version__))
    return load_identity(disk, path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@atexit.register
def _close_all() -> None:
    """A program that ends without close() loses nothing it committed."""
    for run in list(_runs):
        run.close()


def _end_gently() -> None:
    """SIGTERM ends a program as Ctrl-C does, by unwinding, so that what is committed is flushed. Only where the program
    has not said otherwise: a preempted job has seconds, and the default is to die at once."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _after_fork() -> None:
    for run in list(_runs):
        run._forked()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
