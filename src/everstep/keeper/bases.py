"""The bases of one writer's term: written, named in the manifest, let go of when there are more than may be kept."""

import time
from collections.abc import Callable

import msgspec

from everstep.keeper.buffer import Snapshot
from everstep.store import prune
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Book


class Bases:
    """Every call may be repeated after an OSError. `floor`: the step that must stay to be had."""

    def __init__(self, disk: Disk, book: Book, *, retain_bytes_max: int, floor: Callable[[], int]) -> None:
        self._disk, self._book = disk, book
        self._retain_bytes_max, self._floor = retain_bytes_max, floor
        self._written: tuple[Snapshot, BaseEntry] | None = None
        self.bytes_per_s = 0.0
        """What the disk took of the last one; 0 before."""

    def add(self, snapshot: Snapshot) -> None:
        """Make it durable. A base that is named already stays as it is: nothing may take its place."""
        manifest = self._book.manifest
        if (snapshot.step, manifest.epoch) in {(entry.step, entry.epoch) for entry in manifest.bases}:
            return
        if self._written is None or self._written[0] is not snapshot:
            began = time.monotonic()
            self._written = (snapshot, snapshot.write(self._disk, self._book))
            self.bytes_per_s = self._written[1].nbytes / max(time.monotonic() - began, 1e-6)
        entry = self._written[1]  # not written again: a manifest that failed to be published may name it all the same
        self._book.change(lambda manifest: msgspec.structs.replace(manifest, bases=(*manifest.bases, entry)))
        self._written = None

    def retain(self) -> None:
        """Let go of what is more than may be kept."""
        if prune.held_bytes(self._book.manifest) > self._retain_bytes_max:
            floor = self._floor()
            prune.apply(self._disk, self._book, lambda manifest: prune.within(manifest, self._retain_bytes_max, floor))
