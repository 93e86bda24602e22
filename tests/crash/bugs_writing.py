"""Bugs of those who write: what is synced, in which order, and when it is acknowledged."""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from everstep.keeper import frontier
from everstep.keeper.frontier import Frontier
from everstep.keeper.keeper import Keeper
from everstep.log import lease
from everstep.log.writer import Writer
from everstep.store import disk as disk_module
from everstep.store import manifest as manifest_module
from everstep.store import names, prune, witness
from everstep.store.manifest import Book
from tests.crash.mutation import bug, swapped
from tests.crash.simdisk import SimDisk


def _nothing(self: SimDisk, _where: Any) -> None:
    self._enter("nothing", "")


class _Unsynced:
    """A disk whose syncs are left out."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync(self, handle: int) -> None:
        pass

    def sync_dir(self, directory: str) -> None:
        pass


class _RootUnsynced(_Unsynced):
    """A disk whose run directory is never synced."""

    def sync(self, handle: int) -> None:
        self._disk.sync(handle)

    def sync_dir(self, directory: str) -> None:
        if directory:
            self._disk.sync_dir(directory)


@bug("explored")
def no_file_fsync() -> Iterator[None]:
    with swapped(SimDisk, "sync", _nothing):
        yield


@bug("explored")
def no_directory_fsync() -> Iterator[None]:
    with swapped(SimDisk, "sync_dir", _nothing):
        yield


@bug("explored")
def run_directory_not_synced() -> Iterator[None]:
    real = SimDisk.sync_dir
    with swapped(SimDisk, "sync_dir", lambda self, where: real(self, where) if where else None):
        yield


@bug("killed_then_cut")
def names_of_a_killed_writer_not_synced() -> Iterator[None]:
    """As it was: a directory that existed was taken for one that had been synced."""
    real = lease.take

    def take(disk: Any, run: str, rank: int, **options: Any) -> Any:
        if names.writer(rank) not in disk.names(""):
            return real(disk, run, rank, **options)
        return real(_RootUnsynced(disk), run, rank, **options)

    with swapped(lease, "take", take):
        yield


@bug("explored")
def drafts_renamed_without_fsync() -> Iterator[None]:
    def careless(disk: Any, path: str, data: bytes) -> str:
        directory, _, name = path.rpartition("/")
        draft = f"{directory}/.{name}.{'0' * 12}.tmp".lstrip("/")
        handle = disk.create(draft)
        disk.write(handle, [data])
        disk.close(handle)
        return draft

    with swapped(disk_module, "write_temporary", careless):
        yield


@bug("explored")
def removed_before_renamed() -> Iterator[None]:
    def replace(disk: Any, path: str, data: bytes) -> None:
        draft = disk_module.write_temporary(disk, path, data)
        disk.remove(path)
        disk.rename(draft, path)
        disk.sync_dir(path.rpartition("/")[0])

    with swapped(manifest_module, "publish", replace):
        yield


@bug("killed_then_cut")
def tail_of_a_killed_writer_not_synced() -> Iterator[None]:
    with swapped(SimDisk, "sync_file", _nothing):
        yield


@bug("explored")
def manifest_before_base_is_durable() -> Iterator[None]:
    real = Keeper._write_base

    def early(self: Keeper, snapshot: Any) -> None:
        write = type(snapshot).write

        def unsynced(taken: Any, disk: Any, book: Book) -> Any:
            return write(taken, _Unsynced(disk), book)

        with swapped(type(snapshot), "write", unsynced):
            real(self, snapshot)

    with swapped(Keeper, "_write_base", early):
        yield


@bug("explored")
def prune_before_manifest_is_durable() -> Iterator[None]:
    def hasty(disk: Any, book: Book, edit: Any) -> list[str]:
        gone = sorted(prune.files(book.manifest) - prune.files(edit(book.manifest)))
        for path in gone:
            disk.remove(path)
        book.change(edit)
        return gone

    with swapped(prune, "apply", hasty):
        yield


@bug("explored")
def sweep_removes_live_segments() -> Iterator[None]:
    real = lease.sweep

    def greedy(disk: Any, book: Book) -> list[str]:
        return real(disk, Book(disk, msgspec.structs.replace(book.manifest, segments=())))

    with swapped(lease, "sweep", greedy):
        yield


@bug("explored")
def acknowledged_before_fsync() -> Iterator[None]:
    def eager(self: Keeper) -> None:
        while batch := self._next_batch():
            self._acknowledge(batch)
            self._writer.write([item.record for item in batch], self.acknowledged)

    with swapped(Keeper, "_write_records", eager):
        yield


@bug("explored")
def witness_before_sync() -> Iterator[None]:
    def boastful(self: Keeper) -> None:
        while batch := self._next_batch():
            step = batch[-1].record.step
            if self.acknowledged >= 0:
                self._disk.mark(self._witness, witness.pack(self._book.manifest.epoch, ((step, step),)))
            self._writer.write([item.record for item in batch], self.acknowledged)
            self._acknowledge(batch)

    with swapped(Keeper, "_write_records", boastful):
        yield


@bug("explored")
def rebase_acknowledged_before_its_base() -> Iterator[None]:
    real = Frontier.logged
    with swapped(Frontier, "logged", lambda self, step, **_said: real(self, step, rebase=False)):
        yield


@bug("explored")
def skipped_steps_acknowledged() -> Iterator[None]:
    """As it was: a stretch was taken to end where the next begins."""

    def logged(self: Frontier, step: int, *, rebase: bool) -> None:
        if rebase:
            self._ends[-1] = step - 1
            self._starts.append(step)
            self._ends.append(step)
        self._ends[-1] = step

    with swapped(frontier.Frontier, "logged", logged):
        yield


@bug("stopped_while_waiting")
def given_up_and_acknowledged() -> Iterator[None]:
    """As it was: what the keeper gave up when it stopped counted as written."""

    def trusting(self: Keeper) -> None:
        while batch := self._next_batch():
            self._persist("log", lambda: self._writer.write([item.record for item in batch], 0))
            self._acknowledge(batch)

    with swapped(Keeper, "_write_records", trusting):
        yield


@bug("failed_sync")
def failed_fsync_retried() -> Iterator[None]:
    real = SimDisk.sync

    def again(self: SimDisk, handle: int) -> None:
        try:
            real(self, handle)
        except OSError:
            real(self, handle)

    with swapped(SimDisk, "sync", again):
        yield


@bug("failed_write")
def segment_used_after_a_failed_write() -> Iterator[None]:
    with swapped(Writer, "_abandon", lambda _self: None):
        yield


@bug("failed_check")
def segment_used_after_a_failed_check() -> Iterator[None]:
    """As it was: the check stood outside of what abandons the segment."""

    def write(self: Writer, records: Any, acknowledged: int) -> None:
        check, handle = self._book.check, self._handle
        self._book.check = lambda: None
        before = self._chain, self._offset, self.step
        try:
            real(self, records, acknowledged)
        finally:
            self._book.check = check
        after = self._chain, self._offset, self.step
        self._chain, self._offset, self.step = before if handle is not None else after
        self._book.check()
        self._chain, self._offset, self.step = after

    real = Writer.write
    with swapped(Writer, "write", write):
        yield


@bug("refused_then_cut")
def cache_trusted_after_a_failed_fsync() -> Iterator[None]:
    """As it was: the next owner read a killed writer's records where no disk had them."""
    with swapped(lease, "_distrust_cache", lambda _disk, _rank: None):
        yield


@bug("refused_then_cut")
def segment_removed_after_a_failed_publish() -> Iterator[None]:
    """As it was: the manifest might name the segment all the same."""
    real = Writer.roll

    def roll(self: Writer) -> None:
        path = names.segment(self._book.manifest.writer, self._book.manifest.epoch, self._sequence + 1)
        try:
            real(self)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.remove(path)
            raise

    with swapped(Writer, "roll", roll):
        yield


@bug("refused_then_cut")
def base_rewritten_after_a_failed_publish() -> Iterator[None]:
    """As it was: the manifest might name the base whose files were being replaced."""
    real = Keeper._write_base

    def write_base(self: Keeper, snapshot: Any) -> None:
        self._bases._written = None
        real(self, snapshot)

    with swapped(Keeper, "_write_base", write_base):
        yield
