"""What a training program holds: `open` and `Run`. Wires capture, keeper and recover together."""

import atexit
import os
import secrets
import time
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self

import torch

from everstep import __version__
from everstep.capture import record, snapshot
from everstep.capture.context import Context, Stateful
from everstep.capture.hooks import BUFFER_FULL, Hooks
from everstep.capture.roster import Model, Optimizers, Roster, call_the_roll
from everstep.capture.slots import Slots
from everstep.errors import EverstepError, Misuse, NotAcknowledged
from everstep.keeper.buffer import Item
from everstep.keeper.health import Health
from everstep.keeper.keeper import Keeper
from everstep.keeper.pace import Pace
from everstep.log import frame, lease, term
from everstep.log.writer import Record
from everstep.recover import choose
from everstep.recover.inventory import Inventory, survey
from everstep.recover.ledger import Ledger
from everstep.recover.onto import onto_program
from everstep.settings import Settings
from everstep.store.disk import LocalDisk, created
from everstep.store.manifest import Identity, load_identity, start_identity
from everstep.url import local_path

CLOSE_SECONDS = 60.0
GAP = "steps before it were not recorded"

_runs: "weakref.WeakSet[Run]" = weakref.WeakSet()


def open(  # noqa: A001 everstep.open, as in DESIGN
    url: str | os.PathLike[str],
    *,
    model: Model,
    optimizer: Optimizers,
    state: Mapping[str, Stateful] | None = None,
    settings: Settings | None = None,
) -> "Run":
    """Open a run for training, or begin one. Nothing is read into the model before `resume()`."""
    roster = call_the_roll(model, optimizer)
    context = Context(roster, state or {})
    context.changed()  # what cannot be recorded is refused here, before anything exists
    path = local_path(url)
    disk = created(path)
    try:
        identity = _identity(disk, path)
        held = lease.take(disk, identity.run, 0, opened=_now(), take_over=(settings or Settings()).take_over)
    except BaseException:
        disk.release()
        raise
    return Run(path, disk, held, roster, context, model, optimizer, settings or Settings())


class Run:
    """One training run in this process. Call `resume` once, then `commit` after every optimizer step, then `close`."""

    def __init__(
        self, url: str, disk: LocalDisk, held: lease.Lease, roster: Roster, context: Context, model: Model,
        optimizer: Optimizers, settings: Settings,
    ) -> None:  # fmt: skip
        self._url = url
        self._disk = disk
        self._lease = held
        self._roster = roster
        self._context = context
        self._program = (model, optimizer)
        self._settings = settings
        self._slots = Slots(settings.buffer_bytes_max)
        self._keeper: Keeper | None = None
        self._hooks: Hooks | None = None
        self._pace = Pace(settings)
        self._step = self._recorded = -1
        self._gap = False
        self._pid = os.getpid()
        self._closed = False
        self._ledger: Ledger | None = None
        _runs.add(self)

    def resume(self, step: int | None = None) -> int:
        """Bring model, optimizer and `state=` to the newest step, or to `step`, and return the number of steps done.

        0 for a new run. An older step begins a new branch; the old one stays until it is pruned.
        """
        self._usable()
        if self._keeper is not None:
            raise Misuse("resume() was called twice. A run resumes once, before its first step.")
        inventory = survey(self._disk, self._url)
        routes = choose.routes(inventory, step)
        if routes:
            strict = self._settings.unmatched == "refuse"
            self._ledger = onto_program(self._disk, 0, routes, self._roster, self._context, strict=strict)
            self._roster = call_the_roll(*self._program)
        self._step = self._recorded = routes[0].step if routes else 0
        self._begin(inventory, routes)
        return self._step

    def commit(self) -> int:
        """Make the step just taken recoverable. Returns once it is handed over; `acknowledged` says what is safe."""
        self._usable()
        keeper, hooks = self._running()
        keeper.refuse_if_fenced()
        hooks.check()
        if not hooks.updates and hooks.why_base is None and not self._scaler_skipped():
            raise Misuse(
                f"commit() after step {self._step}: no optimizer has stepped since the last commit. Commit once per "
                "optimizer.step(), after it (with gradient accumulation, not after every micro-batch). With a "
                "GradScaler, pass it in state=."
            )
        self._step = max(self._step, keeper.committed)  # a commit that was interrupted has used up its number
        step = self._step + 1
        why_base = hooks.why_base or (GAP if self._gap else None)
        self._gap = True  # an interrupt from here on leaves a gap, and a base closes it
        try:
            if why_base is None:
                recorded = self._commit_record(keeper, hooks, step)
            else:
                recorded = self._commit_base(keeper, hooks, step, why_base)
        except EverstepError:
            raise  # something that can never be recorded; the caller must know
        except Exception as failed:  # noqa: BLE001 out of memory, say: training comes first, `health` shows it
            keeper.skip(step, f"capture failed ({type(failed).__name__}: {failed})")
            recorded = False
        self._step = step
        hooks.reset()
        self._gap = not recorded
        self._recorded = step if recorded else self._recorded
        return step

    def acknowledged(self, tier: Literal["disk"] = "disk") -> int:
        """The newest step that survives what the tier promises to survive ("disk": a power cut); -1 for none yet."""
        if tier != "disk":
            raise Misuse(f"acknowledged({tier!r}): this run has one tier, 'disk'.")
        return self._running()[0].acknowledged

    def wait(self, step: int | None = None, timeout: float | None = None) -> int:
        """Wait until `step`, the newest committed by default, is acknowledged, and return the newest that is."""
        keeper, _ = self._running()
        wanted = self._step if step is None else step
        if wanted > self._step:
            raise Misuse(f"wait({wanted}): only steps up to {self._step} are committed.")
        if wanted > self._recorded:
            raise NotAcknowledged(
                f"step {wanted} was not recorded (see run.health), {keeper.acknowledged} is acknowledged. The next "
                "base closes the gap."
            )
        if not keeper.wait(wanted, timeout):
            health = keeper.health
            raise NotAcknowledged(
                f"step {wanted} is not acknowledged, {health.acknowledged} is. The run is {health.state}"
                f"{f' ({health.error})' if health.error else ''}."
            )
        return keeper.acknowledged

    @property
    def health(self) -> Health:
        """How far the run is safe and what stands in its way."""
        return self._running()[0].health

    @property
    def ledger(self) -> Ledger | None:
        """Where every restored item came from; None for a new run."""
        return self._ledger

    def close(self) -> None:
        """Write what is committed and let the run go. Closing twice does nothing."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks.reset()
        try:
            if self._keeper is not None:
                self._keeper.close(CLOSE_SECONDS)
                health = self._keeper.health
                if self._hooks is not None and health.acknowledged < self._recorded and health.state != "fenced":
                    raise NotAcknowledged(
                        f"{self._url}: closed with step {health.acknowledged} acknowledged and safe, but "
                        f"{health.committed} committed{f' ({health.error})' if health.error else ''}."
                    )
        finally:
            self._lease.release()
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

    # Beginning.

    def _begin(self, inventory: Inventory, routes: list[choose.Route]) -> None:
        """Continue the log after the chosen step, in this process's own epoch."""
        book, step = self._lease.book, self._step
        last = inventory.records.get(step)
        writer = term.begin(
            self._disk, book, inventory.manifest, inventory.segments, parent=inventory.epoch if routes else None,
            step=step, chain=last.frame.chain if last is not None else 0, opened=_now(),
            segment_bytes=self._settings.segment_bytes,
        )  # fmt: skip
        self._keeper = Keeper(
            self._disk,
            book,
            writer,
            buffer_bytes_max=self._settings.buffer_bytes_max,
            retain_bytes_max=self._settings.retain_bytes_max,
        )
        self._keeper.start(step, based=bool(routes))
        self._hooks = Hooks(self._roster, self._slots, self._admit)
        if self._ledger is not None:
            replayed = routes[0].records
            log_bytes = sum(record.frame.nbytes for record in replayed)
            self._pace.resumed(routes[0].base.nbytes, log_bytes, len(replayed), self._ledger.replay_seconds)
        else:
            self._keeper.put_base(self._snapshot(step))
        self._context.forget()
        self._hooks.start()
        if self._ledger is not None:
            self._hooks.why_base = self._ledger.changed

    def _snapshot(self, step: int) -> snapshot.Snapshot:
        taken = snapshot.take(step, self._roster, self._context, self._slots)
        self._pace.based(taken.nbytes)
        return taken

    # Committing.

    def _commit_record(self, keeper: Keeper, hooks: Hooks, step: int) -> bool:
        """A record, and a base beside it when it is time for one."""
        taken = record.take(hooks, self._context, self._roster, whole=step % self._settings.digest_every == 0)
        due = self._pace.recorded(taken.nbytes, time.perf_counter()) and keeper.reserve_base(0.0)
        item = Item(Record(frame.UPDATE, step, taken.pieces), taken.nbytes, taken.release)
        keeper.put(item, self._snapshot(step) if due else None)
        return True

    def _commit_base(self, keeper: Keeper, hooks: Hooks, step: int, why: str) -> bool:
        """A step that replay cannot reach: only a base can hold it, and one at a time can be written."""
        crowded = why in (GAP, BUFFER_FULL) and not keeper.drained
        if crowded or not keeper.reserve_base(self._settings.stall_ms_max / 1000):
            keeper.skip(step, why)
            return False
        if hooks.why_base is not None:
            self._roster = call_the_roll(*self._program)
            self._context = Context(self._roster, self._context.state)
            hooks.rename(self._roster)
        hooks.say_all()
        taken = self._snapshot(step)
        piece = record.take_rebase(hooks, self._roster)
        keeper.put(Item(Record(frame.REBASE, step, [piece]), len(piece), lambda: None), taken)
        keeper.warn(f"step {step} is kept as a base: {why}", kind=why)
        return True

    def _admit(self, nbytes: int) -> bool:
        return not self._gap and self._running()[0].reserve(nbytes, self._settings.stall_ms_max / 1000)

    def _scaler_skipped(self) -> bool:
        """Whether a GradScaler in `state=` held its optimizer back: then a step without an update is right."""
        return any(isinstance(item, torch.amp.GradScaler) for item in self._context.state.values())

    def _running(self) -> tuple[Keeper, Hooks]:
        if self._keeper is None or self._hooks is None:
            raise Misuse("call resume() first: it decides which step the run continues from.")
        return self._keeper, self._hooks

    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise Misuse("this process was forked from the one that opened the run; only that one may write it.")
        if self._closed:
            raise Misuse("the run is closed. Open it again to go on.")

    def _forked(self) -> None:
        """In a forked child: let go of the lease's descriptor, so that it does not outlive the trainer here."""
        if not self._closed:
            self._closed = True
            self._lease.release()
            if self._hooks is not None:
                self._hooks.watching = False


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


def _after_fork() -> None:
    for run in list(_runs):
        run._forked()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork)
