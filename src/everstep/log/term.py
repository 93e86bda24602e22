"""A writer's term: how a claimed epoch opens for records.

The log was read after the epoch was claimed (`lease`). Now the manifest says from which step this epoch goes on and
where the segments of earlier epochs are cut, what nobody needs is swept, and the first segment begins.
"""

import os
import socket
from collections.abc import Sequence

import msgspec

from everstep.log import lease
from everstep.log.reader import Scanned
from everstep.log.writer import Writer
from everstep.store import names
from everstep.store.disk import Disk
from everstep.store.manifest import Book, Manifest, Segment, Term


def begin(
    disk: Disk, book: Book, read: Manifest, found: Sequence[tuple[Segment, Scanned]], *, parent: int | None, step: int,
    chain: int, opened: str, segment_bytes: int, acknowledged: int | None = None,
    pid: int | None = None,
) -> Writer:  # fmt: skip
    """Open the epoch for records after `step` of epoch `parent` (None: a new history).

    `read` and `found` are the manifest and log as they were found after the claim; the book's copy is from before it.
    `acknowledged`: what the disk holds; `step` itself, unless training goes on from memory.
    """
    ends = {(entry.epoch, entry.sequence): scanned for entry, scanned in found}
    reached = acknowledged if acknowledged is not None else -1 if parent is None else step

    def settled(claimed: Manifest) -> Manifest:
        manifest = msgspec.structs.replace(read, epoch=claimed.epoch)
        term = Term(manifest.epoch, parent, step, chain, opened, socket.gethostname(), pid or os.getpid())
        terms = (*(known for known in manifest.terms if known.from_step is not None), term)
        segments = tuple(_sealed(entry, ends.get((entry.epoch, entry.sequence))) for entry in manifest.segments)
        return msgspec.structs.replace(manifest, state="open", acknowledged=reached, terms=terms, segments=segments)

    for entry, scanned in found:
        if entry.nbytes is None and scanned.records:  # perhaps read from the cache: durable before it is built on
            disk.sync_file(names.segment(book.manifest.writer, entry.epoch, entry.sequence))
    book.change(settled)
    lease.sweep(disk, book)
    writer = Writer(disk, book, after_step=step, chain=chain, segment_bytes=segment_bytes)
    writer.roll()
    return writer


def _sealed(entry: Segment, found: Scanned | None) -> Segment:
    """The segment, cut where its last whole record ends."""
    if entry.nbytes is not None or found is None:
        return entry
    last = found.records[-1].step if found.records else entry.after_step
    return msgspec.structs.replace(entry, nbytes=found.end, last_step=last)
