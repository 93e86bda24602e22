"""Appends records to segments. When `write` returns they survive a power cut; when it raises, nothing is claimed.

Fail-stop: after any failed write or sync the segment is abandoned at its last durable byte, and the same records go to
a new one. A failed sync is not repeated, and what the page cache shows afterwards is not believed.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from everstep.log import frame
from everstep.store import names
from everstep.store.disk import Disk
from everstep.store.manifest import Book, Manifest, Segment
from everstep.types import Bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A step on its way to the log. The body is opaque here."""

    kind: int
    step: int
    body: list[Bytes]
    checksum: int | None = None
    """Of the body, if someone had time to compute it before it is this record's turn."""


class Writer:
    """The log of one epoch. Not safe between threads: its owner calls it from one."""

    def __init__(self, disk: Disk, book: Book, *, after_step: int, chain: int, segment_bytes: int) -> None:
        self._disk = disk
        self._book = book
        self._run = bytes.fromhex(book.manifest.run)
        self._segment_bytes = segment_bytes
        self._handle: int | None = None
        self._sequence = -1
        self._listed: int | None = None
        self._offset = 0
        self._chain = chain
        self.step = after_step
        """Newest durable step in the log."""

    def write(self, records: Sequence[Record], acknowledged: int) -> None:
        """Append the records and make them durable: one write, one sync, whatever their number."""
        if self._handle is None or self._offset >= self._segment_bytes:
            self.roll()
        assert self._handle is not None
        pieces: list[Bytes] = []
        chain, epoch, length = self._chain, self._book.manifest.epoch, 0
        for record in records:
            packed, chain = frame.pack(
                record.kind, record.step, epoch, acknowledged, record.body, chain=chain, ahead=record.checksum
            )
            pieces += packed
            length += sum(memoryview(piece).nbytes for piece in packed)
        try:
            self._disk.write(self._handle, pieces)
            self._disk.sync(self._handle)
            self._book.check()  # after the sync: who claimed an epoch before this line reads these records or fences us
        except BaseException:
            self._abandon()  # also when only the check failed: these bytes must not be written after themselves
            raise
        self._chain, self._offset, self.step = chain, self._offset + length, records[-1].step

    def roll(self) -> None:
        """Begin a new segment. It exists once the manifest names it; the old one is then cut where it is durable."""
        manifest = self._book.manifest
        self._sequence += 1
        path = names.segment(manifest.writer, manifest.epoch, self._sequence)
        head, chain = frame.pack_head(
            manifest.writer, self._run, manifest.epoch, self._sequence, self.step, self._chain
        )
        handle = self._disk.create(path)
        try:
            self._disk.write(handle, [head])
            self._disk.sync(handle)
            self._disk.sync_dir(names.writer(manifest.writer))
        except BaseException:
            self._disk.close(handle)
            with contextlib.suppress(OSError):
                self._disk.remove(path)
            raise
        try:
            self._book.change(self._listing)
        except BaseException:
            self._disk.close(handle)  # not removed: the manifest may name it all the same; if not, it is swept
            raise
        self._abandon()
        self._handle, self._chain, self._listed = handle, chain, self._sequence
        self._offset = len(head)

    def close(self) -> None:
        """Let go of the file. Everything acknowledged is durable already."""
        self._abandon()

    def sealed(self, manifest: Manifest) -> Manifest:
        """The manifest with our open segment cut at its last durable byte."""
        return msgspec.structs.replace(manifest, segments=tuple(self._cut(entry) for entry in manifest.segments))

    def _listing(self, manifest: Manifest) -> Manifest:
        new = Segment(manifest.epoch, self._sequence, self.step)
        return msgspec.structs.replace(manifest, segments=(*self.sealed(manifest).segments, new))

    def _cut(self, entry: Segment) -> Segment:
        if (entry.epoch, entry.sequence) != (self._book.manifest.epoch, self._listed):
            return entry
        return msgspec.structs.replace(entry, last_step=self.step, nbytes=self._offset)

    def _abandon(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):  # its bytes are synced or given up; close can add nothing to either
                self._disk.close(handle)
