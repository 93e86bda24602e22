"""Bugs of those who read, and of writers that do not know of each other."""

from collections.abc import Iterator
from typing import Any

from everstep.log import frame, reader
from everstep.log.inventory import Inventory
from everstep.store import disk as disk_module
from everstep.store import manifest as manifest_module
from everstep.store import names
from everstep.store.manifest import Book
from tests.crash.mutation import bug, swapped


@bug("spliced")
def unchained_checksum() -> Iterator[None]:
    pack, parse = frame.pack, frame.parse
    with (
        swapped(frame, "pack", lambda *a, **_chain: pack(*a, chain=0)),
        swapped(frame, "parse", lambda data, room, **_chain: parse(data, chain=0, room=room)),
    ):
        yield


@bug("explored")
def body_checksum_not_checked() -> Iterator[None]:
    with swapped(frame, "check_body", lambda _found, _body: None):
        yield


@bug("explored")
def length_taken_as_proof() -> Iterator[None]:
    def parse(data: Any, *, chain: int, room: int) -> frame.Frame:
        if len(data) < frame.FRAME.size:
            raise frame.BadFrame("short")
        _, kind, length, step, epoch, acknowledged, checksum, _, link = frame.FRAME.unpack_from(data)
        if length < 1 or frame.FRAME.size + length > room:
            raise frame.BadFrame("short")
        return frame.Frame(kind, length, step, epoch, acknowledged, checksum, link)

    with swapped(frame, "parse", parse), swapped(frame, "check_body", lambda _found, _body: None):
        yield


@bug("foreign")
def segment_of_another_run_accepted() -> Iterator[None]:
    def head(self: Any, before: int | None) -> int:
        return frame.parse_head(self._source.read(0, min(frame.SEGMENT_BYTES, self._end))).chain

    with swapped(reader._Scan, "_head", head):
        yield


@bug("hole")
def gap_accepted() -> Iterator[None]:
    real = reader._Scan._frames

    def frames(self: Any, chain: int) -> Iterator[Any]:
        parse = frame.parse

        def lenient(data: Any, *, chain: int, room: int) -> frame.Frame:
            found = parse(data, chain=chain, room=room)
            self._last = found.step - 1
            return found

        with swapped(frame, "parse", lenient):
            yield from real(self, chain)

    def reach(self: Inventory, step: int) -> int:
        return max((at for at in self.records if at > step), default=step)

    with swapped(reader._Scan, "_frames", frames), swapped(Inventory, "reach", reach):
        yield


@bug("explored")
def oldest_manifest_counts() -> Iterator[None]:
    real = manifest_module.epochs
    with swapped(manifest_module, "epochs", lambda disk, rank: real(disk, rank)[::-1]):
        yield


@bug("paused")
def no_epoch_check() -> Iterator[None]:
    with swapped(Book, "check", lambda _self: None):
        yield


@bug("paused")
def no_check_after_publishing() -> Iterator[None]:
    """As it was: a base could be acknowledged that the successor had not seen."""

    def change(self: Book, edit: Any) -> Any:
        edited = edit(self._manifest)
        self.check()
        manifest_module.publish(self._disk, self.path, manifest_module.document.pack("manifest", edited))
        self._manifest = edited
        return edited

    with swapped(Book, "change", change):
        yield


@bug("paused")
def taken_over_from_a_stale_manifest() -> Iterator[None]:
    """As it was: the manifest was read before the claim, not after it."""

    with swapped(manifest_module, "_load_newest", manifest_module._load):
        yield


@bug("paused")
def next_epoch_alone_fences() -> Iterator[None]:
    """As it was: a writer that slept through two takeovers did not find out."""

    def check(self: Book) -> None:
        rank, epoch = self._manifest.writer, self._manifest.epoch
        if self._disk.exists(names.manifest(rank, epoch + 1)) or not self._disk.exists(self.path):
            raise manifest_module.Fenced("ended")

    with swapped(Book, "check", check):
        yield


@bug("paused")
def epoch_claimed_by_rename() -> Iterator[None]:
    def rename(disk: Any, path: str, data: bytes) -> bool:
        if disk.exists(path):
            return False
        disk.rename(disk_module.write_temporary(disk, path, data), path)
        disk.sync_dir(path.rpartition("/")[0])
        return True

    with swapped(manifest_module, "claim", rename):
        yield
