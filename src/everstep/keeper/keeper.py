"""Takes records and bases from the training loop, makes them durable, and says how far the run is safe.

One thread for the log, one for bases, so that a large base never holds up a record, and, once there are large records,
one that computes their checksums ahead. Training comes first: a full buffer costs a commit at most `stall_ms_max`, a
disk that refuses writes costs nothing but acknowledgement.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from everstep.errors import EverstepError, Fenced
from everstep.keeper import buffer
from everstep.keeper.bases import Bases
from everstep.keeper.buffer import HASHED_AHEAD_BYTES, Item, Shared, Snapshot
from everstep.keeper.frontier import Frontier
from everstep.keeper.health import Health, State
from everstep.log import frame
from everstep.log.writer import Writer
from everstep.store import names, prune, witness
from everstep.store.disk import Disk
from everstep.store.manifest import Book, Manifest
from everstep.types import Span

LOGGER = logging.getLogger("everstep")
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


class Keeper:
    """The owner of one writer's log and bases, from `start` to `close`."""

    def __init__(
        self, disk: Disk, book: Book, writer: Writer, *, retain_bytes_max: int,
        noted: Callable[[], None] = lambda: None, floor: Callable[[], int] = lambda: prune.ANY_STEP,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._book = book
        self._writer = writer
        self._bases = Bases(disk, book, retain_bytes_max=retain_bytes_max, floor=floor)
        self._noted = noted
        self._shared = Shared()
        self._changed = threading.Condition()
        self._noting = threading.Lock()
        self._frontier = Frontier(0, based=False)
        self._witness: int | None = None
        self._threads: list[threading.Thread] = []
        self._hashes = self._yields = False
        self._said: set[str] = set()

    def start(self, step: int, *, based: bool, spans: Sequence[Span] = ()) -> None:
        """Begin after `step`; `based` says whether that step can be restored already, `spans` what could be before."""
        self._frontier = Frontier(step, based=based, spans=spans)
        self._shared.committed = step
        rank, epoch = self._book.manifest.writer, self._book.manifest.epoch
        self._witness = self._disk.create(names.witness(rank, epoch))
        if self._frontier.spans:  # also for who looks once a later epoch has begun and come to nothing
            self._note()
        self._begin(self._write_records, "everstep-log")
        self._begin(self._write_bases, "everstep-base")

    def _begin(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    # What the training loop calls.

    def put(self, item: Item, snapshot: Snapshot | None) -> None:
        """Take a record, and with it a base of the same step."""
        with self._changed:
            # First: should an interrupt strike in between, this number is used up, and no later record can repeat it.
            self._shared.committed = item.record.step
            if item.nbytes >= HASHED_AHEAD_BYTES and self._threads and not self._hashes:
                self._hashes = True
                self._begin(self._hash_records, "everstep-hash")
            self._shared.items.append(item)
            self._shared.queued_bytes += item.nbytes
            if snapshot is not None:
                self._shared.snapshot = snapshot
            self._changed.notify_all()

    def put_base(self, snapshot: Snapshot) -> None:
        """Take the base a run begins with."""
        with self._changed:
            self._shared.snapshot = snapshot
            self._changed.notify_all()

    def warn(self, text: str, kind: str = "") -> None:
        """Leave a word in `health`, and in the program's log the first time that one of its kind is said."""
        if (kind or text) not in self._said:
            self._said.add(kind or text)
            LOGGER.warning("%s", text)
        with self._changed:
            self._shared.warn(text)

    @property
    def acknowledged(self) -> int:
        with self._changed:
            return self._frontier.acknowledged

    def wait(self, step: int, seconds: float | None) -> bool:
        """Whether `step` is acknowledged, after at most `seconds`; at once when it never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._frontier.acknowledged >= step or self._shared.stopped, seconds)
            return self._frontier.acknowledged >= step

    @property
    def health(self) -> Health:
        with self._changed:
            return self._shared.health(self._frontier.acknowledged)

    @property
    def bytes_per_s(self) -> float:
        return self._bases.bytes_per_s

    def glance(self) -> tuple[State, int, int]:
        """State, acknowledged step and bases written: what is looked at after every step."""
        with self._changed:
            return self._shared.state, self._frontier.acknowledged, self._shared.bases

    def drop(self) -> list[int]:
        """Give up every record that is not being written yet, and those that the disk refuses; their steps.

        Only a base can close the gap.
        """
        with self._changed:
            refuses = "log" in self._shared.errors
            refused = [item for item in self._shared.items if refuses and item.state == "writing"]
            dropped = self._shared.drop()
            for item in dropped:
                item.release()
            self._yields = bool(refused)
            self._changed.notify_all()
            return [item.record.step for item in (*refused, *dropped)]

    def idle(self, seconds: float) -> bool:
        """Whether everything that was handed over is written, or never will be, after at most `seconds`."""
        with self._changed:
            return self._changed.wait_for(self._idle, seconds)

    def fence(self, why: str) -> None:
        """Stop: someone else owns the run from now on."""
        self._stop("fenced", why)
        with self._changed:
            self._shared.closing = True
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Write what is still queued, for at most `seconds`, seal the log and stop."""
        with self._changed:
            self._changed.wait_for(self._idle, seconds)
            self._shared.closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=max(1.0, seconds))
        if not any(thread.is_alive() for thread in self._threads):  # who still writes has the files open
            with contextlib.suppress(OSError, EverstepError):  # all of it is a courtesy to the next reader
                self._book.change(self._closed)
            self._writer.close()
            with self._noting:
                note, self._witness = self._witness, None  # once, though two may close
            if note is not None:
                self._disk.close(note)
        with self._changed:
            if self._shared.state in ("ok", "degraded"):
                self._shared.state = "closed"
            self._noted()
            self._changed.notify_all()

    # What the threads do.

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Fenced as fenced:
            self._stop("fenced", str(fenced))
        except Exception as failed:  # noqa: BLE001 training must go on; `health` shows it
            self._stop("failed", f"{type(failed).__name__}: {failed}")

    def _stop(self, state: Literal["fenced", "failed"], error: str) -> None:
        LOGGER.error("%s: %s", state, error)
        with self._changed:
            if self._shared.stopped:
                return
            self._shared.state = state
            self._shared.errors = {"stop": error}
            while self._shared.items:
                self._shared.items.popleft().release()
            self._shared.queued_bytes = 0
            if self._shared.snapshot is not None:
                self._shared.snapshot.release()
                self._shared.snapshot = None
            self._noted()
            self._changed.notify_all()

    def _write_records(self) -> None:
        while batch := self._next_batch():
            if self._persist("log", lambda: self._writer.write([item.record for item in batch], self.acknowledged)):
                self._acknowledge(batch)
            elif not self._given_up(batch):
                return

    def _given_up(self, batch: list[Item]) -> bool:
        """Whether the batch that the disk refuses makes way for newer steps."""
        with self._changed:
            if not self._yields or self._shared.stopped:
                return False
            self._yields = False
            self._remove(batch)
            self._changed.notify_all()
            return True

    def _next_batch(self) -> list[Item]:
        """What waits, up to a bound; it stays in the buffer until it is durable. Empty when it is time to stop."""
        with self._changed:
            shared = self._shared
            self._changed.wait_for(
                lambda: shared.stopped or buffer.batch(shared.items) or (shared.closing and not shared.items)
            )
            found = [] if shared.stopped else buffer.batch(shared.items)
            for item in found:
                item.state = "writing"
            return found

    def _hash_records(self) -> None:
        """Compute the checksums of large records while those before them are being written."""
        while (item := self._next_unhashed()) is not None:
            checksum = frame.checksum(item.record.body)
            with self._changed:
                item.record = dataclasses.replace(item.record, checksum=checksum)
                item.state = "waiting"
                self._changed.notify_all()

    def _next_unhashed(self) -> Item | None:
        with self._changed:
            shared = self._shared
            self._changed.wait_for(lambda: shared.stopped or shared.closing or buffer.unhashed(shared.items))
            found = None if shared.stopped else buffer.unhashed(shared.items)
            if found is not None:
                found.state = "hashing"
            return found

    def _persist(self, what: str, attempt: Callable[[], None]) -> bool:
        """Try until the disk takes it: a full disk is not the end. Each try begins anew; nothing failed is trusted.

        False when the keeper stopped or closes meanwhile: then nothing of it may be acknowledged.
        """
        for tries in range(1 << 62):
            try:
                attempt()
                self._recovered(what)
                return True
            except OSError as refused:
                self._degraded(
                    what,
                    f"{what}: {refused.strerror or refused}. Acknowledged steps are safe; make room or mend the disk.",
                )
            with self._changed:
                pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                if self._changed.wait_for(lambda: self._leaves(what), pause):
                    return False
        return False

    def _leaves(self, what: str) -> bool:
        """Whether it is no use to try again."""
        yields = self._yields if what == "log" else what == "retention" and self._shared.snapshot is not None
        return self._shared.closing or self._shared.stopped or yields

    def _acknowledge(self, batch: list[Item]) -> None:
        with self._changed:
            for item in batch:
                self._frontier.logged(item.record.step, rebase=item.record.kind == frame.REBASE)
            self._remove(batch)
        self._note()

    def _remove(self, batch: list[Item]) -> None:
        for item in batch:
            if self._shared.items and self._shared.items[0] is item:
                self._shared.items.popleft()
                self._shared.queued_bytes -= item.nbytes
                item.release()

    def _write_bases(self) -> None:
        while (snapshot := self._next_snapshot()) is not None:
            if not self._persist("base", lambda: self._write_base(snapshot)):
                return
            self._persist("retention", self._bases.retain)

    def _next_snapshot(self) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._shared.snapshot or self._shared.closing or self._shared.stopped)
            return None if self._shared.stopped else self._shared.snapshot

    def _write_base(self, snapshot: Snapshot) -> None:
        self._bases.add(snapshot)
        with self._changed:
            self._frontier.based(snapshot.step)
            self._shared.bases += 1
            if self._shared.snapshot is snapshot:
                self._shared.snapshot = None
            self._noted()  # first: who sees that it is written looks at what it made safe
            snapshot.release()  # its memory may be another's from now on
        self._note()

    def _note(self) -> None:
        """Leave the acknowledged step where the next process and `everstep ls` find it."""
        # Not with the other lock: a disk with much to write makes even this wait. The note may be lost, the log is not.
        with self._noting, contextlib.suppress(OSError):
            if self._witness is not None:
                with self._changed:
                    spans = self._frontier.spans
                self._disk.mark(self._witness, witness.pack(self._book.manifest.epoch, spans))
        with self._changed:
            self._noted()
            self._changed.notify_all()

    def _degraded(self, what: str, error: str) -> None:
        with self._changed:
            if what not in self._shared.errors:
                LOGGER.warning("%s", error)
            self._shared.errors[what] = error
            if not self._shared.stopped:
                self._shared.state = "degraded"
            self._noted()
            self._changed.notify_all()

    def _recovered(self, what: str) -> None:
        with self._changed:
            if self._shared.errors.pop(what, None) is not None and not self._shared.errors and not self._shared.stopped:
                self._shared.state = "ok"
                LOGGER.warning("%s: the disk takes writes again", what)
                self._noted()
                self._changed.notify_all()

    def _idle(self) -> bool:
        return self._shared.stopped or (not self._shared.items and self._shared.snapshot is None)

    def _closed(self, manifest: Manifest) -> Manifest:
        sealed = self._writer.sealed(manifest)
        return msgspec.structs.replace(sealed, state="closed", acknowledged=self._frontier.acknowledged)
