"""One writer: an open-file-description lock saves work, a claimed epoch decides.

Taking over is done in two steps. First the next epoch is claimed: from then on the old writer finds out before it
acknowledges anything. Only then are manifest and log read, and cut. So whatever the old writer acknowledged lies before
the cut.
"""

import contextlib
import os
import socket
from dataclasses import dataclass

import msgspec

from everstep.errors import Damaged, Fenced, RunInUse, StoreFailed
from everstep.store import names
from everstep.store.disk import Disk, LocalDisk
from everstep.store.manifest import Book, Manifest, Term, claim_epoch, load_newest

CLAIMS_MAX = 16
TEXT_BYTES = 128
LEFT_SECONDS = 240.0
"""So long whoever comes waits for what a dead trainer left to be written."""
DEATH_SECONDS = 2.0
"""So long for a keeper to see that its trainer has died: another may begin elsewhere in the same second."""


@dataclass(slots=True)
class Lease:
    """Held while this process owns a writer. Closing the descriptor in a forked child does not release it."""

    disk: Disk
    descriptor: int
    book: Book

    def release(self) -> None:
        self.disk.close(self.descriptor)

    @property
    def ended(self) -> bool:
        """Whether another process has taken the run over."""
        try:
            self.book.check()
        except Fenced:
            return True
        return False

    def say(self, pid: int, *, left: bool) -> None:
        """Tell who asks for whom it is held. `left`: for a dead trainer, until what it left is written."""
        with contextlib.suppress(OSError):
            self.disk.mark(self.descriptor, _text(pid, left=left))


def take(disk: Disk, run: str, rank: int, *, opened: str, take_over: bool, pid: int | None = None) -> Lease:
    """Own writer `rank` of this run from now on, in a new epoch that is not open for records yet.

    `pid`: the process for which it is taken, if not this one.
    """
    who = pid or os.getpid()
    if names.writer(rank) not in disk.names(""):
        with contextlib.suppress(FileExistsError):
            disk.make_dir(names.writer(rank))
    disk.sync_dir("")  # also when they exist: whoever made these names may have been killed before syncing them
    disk.sync_dir(names.writer(rank))  # the next epoch leans on the manifest before it
    descriptor = _lock(disk, rank, who, take_over=take_over)
    try:
        held = Lease(disk, descriptor, _claim(disk, run, rank, opened, who))
        _distrust_cache(disk, rank)
        return held
    except BaseException:
        disk.close(descriptor)
        raise


def _lock(disk: Disk, rank: int, pid: int, *, take_over: bool) -> int:
    path, text = names.lease(rank), _text(pid, left=False)
    try:
        descriptor = disk.lock(path, text)
        if descriptor is None and take_over:
            disk.remove(path)  # the old owner keeps its lock on a file that has no name any more
            descriptor = disk.lock(path, text)
    except OSError as refused:
        raise StoreFailed(f"{path}: the lease cannot be taken ({refused.strerror}). Nothing was changed.") from refused
    if descriptor is None:
        who, left = _told(disk, rank)
        does = "has ended, and its keeper still writes what it left" if left else "is writing this run"
        raise RunInUse(
            f"{path}: {who} {does}. Nothing was changed. "
            "Wait for it, end it, or fence it off with Settings(take_over=True).",
            wait_seconds=LEFT_SECONDS if left else DEATH_SECONDS,
        )
    return descriptor


def _text(pid: int, *, left: bool) -> bytes:
    """What a lease says; always as long, so that it can be said again in its place."""
    return msgspec.json.encode({"pid": pid, "host": socket.gethostname(), "left": int(left)}).ljust(TEXT_BYTES)


def owner(disk: Disk, rank: int) -> str:
    """Who holds the lease, as text for a message."""
    return _told(disk, rank)[0]


def _told(disk: Disk, rank: int) -> tuple[str, bool]:
    """Who holds the lease, and whether only for what a dead trainer left."""
    try:
        source = disk.source(names.lease(rank))
        try:
            held = msgspec.json.decode(source.read(0, min(source.size, 4096)), type=dict[str, int | str])
        finally:
            source.close()
        return f"process {int(held['pid'])} on {str(held['host'])!r}", held.get("left") == 1
    except (OSError, EOFError, msgspec.MsgspecError, KeyError, ValueError):
        return "another process", False


def holder(disk: LocalDisk, rank: int) -> str | None:
    """Who holds the lease now, None when nobody does. Only looks: a trainer is not disturbed."""
    try:
        return owner(disk, rank) if disk.locked(names.lease(rank)) else None
    except OSError:
        return None  # a file system without such locks, or a lease that may not be read, says nothing


def _claim(disk: Disk, run: str, rank: int, opened: str, pid: int) -> Book:
    for _ in range(CLAIMS_MAX):
        old = load_newest(disk, rank)
        if old is not None and old.run != run:
            raise Damaged(f"{names.manifest(rank, old.epoch)}: belongs to another run ({old.run}), this one is {run}.")
        epoch = 1 if old is None else old.epoch + 1
        term = Term(epoch, None, None, 0, opened, socket.gethostname(), pid)
        if old is None:
            new = Manifest(run, rank, 1, epoch, "opening", -1, (term,), (), ())
        else:
            settled = tuple(known for known in old.terms if known.from_step is not None)
            new = msgspec.structs.replace(old, epoch=epoch, state="opening", terms=(*settled, term))
        with contextlib.suppress(FileNotFoundError):  # our draft was swept: another was first
            if claim_epoch(disk, new):
                return Book(disk, new)
    raise RunInUse(f"writer {rank}: other processes keep taking this run over. Let one of them have it.")


def _distrust_cache(disk: Disk, rank: int) -> None:
    """Let what the log's end is read from be the disk. After a failed sync of a writer that was then killed, the page
    cache shows records that the disk never got."""
    manifest = load_newest(disk, rank)
    for entry in manifest.segments if manifest is not None else ():
        if entry.nbytes is None:
            with contextlib.suppress(OSError):  # missing, or not to be written: the reader finds out which
                disk.sync_file(names.segment(rank, entry.epoch, entry.sequence))


def sweep(disk: Disk, book: Book) -> list[str]:
    """Remove what earlier owners left behind and no manifest names. Only the lease's owner may call this.

    Nothing of a later epoch is touched: should this process have been paused and fenced off, that is its successor's.
    """
    manifest = book.manifest
    rank = manifest.writer
    kept = {names.manifest(rank, manifest.epoch)}
    kept |= {names.segment(rank, entry.epoch, entry.sequence) for entry in manifest.segments}
    kept |= {names.witness(rank, term.epoch) for term in manifest.terms if term.epoch < manifest.epoch}
    for entry in manifest.bases:
        kept |= {names.base(rank, entry.step, entry.epoch), names.tensors(rank, entry.step, entry.epoch)}
    gone = []
    for name in disk.names(names.writer(rank)):
        path, epoch = f"{names.writer(rank)}/{name}", names.epoch_of(name)
        if path not in kept and epoch is not None and epoch <= manifest.epoch:
            book.check()
            with contextlib.suppress(FileNotFoundError):  # an old owner that still runs removed it
                disk.remove(path)
            gone.append(name)
    if gone:
        disk.sync_dir(names.writer(rank))
    return gone
