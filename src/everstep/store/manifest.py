"""What a writer's run consists of: terms, segments, bases. One small file per epoch, replaced as a whole.

The manifest decides, the lock only saves work. Each epoch has its own file, claimed by `link`, so a paused old writer
that wakes up can at most replace a file that no reader looks at any more.
"""

import threading
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

from everstep.errors import Damaged, Fenced, NotARun
from everstep.store import document, names
from everstep.store.disk import Disk, claim, publish

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
RunId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


LOOKS = 8


class Identity(msgspec.Struct, frozen=True):
    """run.json: what this directory is."""

    run: RunId
    created: str
    version: str


class Term(msgspec.Struct, frozen=True):
    """One epoch of one writer. It continues its parent's history after `from_step`; None while it is still opening."""

    epoch: Count
    parent: Count | None
    from_step: Count | None
    chain: int
    opened: str
    host: str
    pid: Count


class Segment(msgspec.Struct, frozen=True):
    """A log file. `nbytes` is where it is cut: bytes beyond it are not part of the run. None while it grows."""

    epoch: Count
    sequence: Count
    after_step: Count
    last_step: Count | None = None
    nbytes: Count | None = None


class BaseEntry(msgspec.Struct, frozen=True):
    """A whole state. It exists from the moment a manifest names it."""

    step: Count
    epoch: Count
    nbytes: Count
    checksum: str


class Manifest(msgspec.Struct, frozen=True):
    run: RunId
    writer: Count
    writers: Count
    epoch: Count
    state: Literal["opening", "open", "closed"]
    acknowledged: int
    terms: tuple[Term, ...]
    segments: tuple[Segment, ...]
    bases: tuple[BaseEntry, ...]

    def term(self, epoch: int) -> Term | None:
        return next((term for term in self.terms if term.epoch == epoch), None)


class Book:
    """The manifest as its owner holds it. Every change is durable when `change` returns. Safe between threads."""

    def __init__(self, disk: Disk, manifest: Manifest) -> None:
        self._disk = disk
        self._manifest = manifest
        self._lock = threading.RLock()

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def change(self, edit: Callable[[Manifest], Manifest]) -> Manifest:
        """Publish the edited manifest, then hold it. If publishing fails nothing has changed."""
        with self._lock:
            edited = edit(self._manifest)
            self.check()
            try:
                publish(self._disk, self.path, document.pack("manifest", edited))
            except FileNotFoundError:  # a successor swept our draft
                self.check()
                raise
            self.check()  # whoever claimed an epoch before this line may have read the manifest before this one
            self._manifest = edited
            return edited

    def check(self) -> None:
        """Raise Fenced once another writer has claimed a later epoch.

        Epochs go up by one, and an owner removes the manifests before its own, so two names nearly tell: only a writer
        that slept through two takeovers, and then published, has put its own name back and finds the next one gone.
        The listing is for that one; alone it would not do, for on some file systems it can miss a name that is just
        being replaced.
        """
        rank, epoch = self._manifest.writer, self._manifest.epoch
        ended = self._disk.exists(names.manifest(rank, epoch + 1)) or not self._disk.exists(self.path)
        if ended or max(epochs(self._disk, rank), default=epoch) > epoch:
            raise Fenced(
                f"epoch {epoch} of writer {rank} has ended: another process took this run over. "
                "What was acknowledged before is kept; stop this process."
            )

    @property
    def path(self) -> str:
        return names.manifest(self._manifest.writer, self._manifest.epoch)


def epochs(disk: Disk, rank: int) -> list[int]:
    """The epochs that have a manifest, oldest first; Damaged when there is none for files that one had named."""
    held = _held(disk, rank)
    found = sorted(int(match[1]) for match in map(names.MANIFEST.fullmatch, held) if match)
    lost = [name for name in held if any(p.fullmatch(name) for p in (names.SEGMENT, names.BASE, names.WITNESS))]
    if lost and not found:  # a new run begun here would sweep them away
        raise Damaged(
            f"{names.writer(rank)}: the manifest is missing, but {lost[0]} is there. Nothing was changed. Restore the "
            "newest e*.json from a copy, or choose another directory."
        )
    return found


def _held(disk: Disk, rank: int) -> list[str]:
    try:
        return disk.names(names.writer(rank))
    except FileNotFoundError:
        raise
    except OSError as refused:  # a link or a file in the directory's place
        raise Damaged(f"{names.writer(rank)}: cannot be read ({refused.strerror}).") from refused


def load_newest(disk: Disk, rank: int) -> Manifest | None:
    """The manifest that counts, or None when this writer never had one.

    An epoch that is still opening holds nothing of its own, and its owner's copy may be stale: until it fences the
    writer before it, that one goes on. So its content is what the newest settled manifest says now.
    """
    missing = None
    for _ in range(LOOKS):
        known = epochs(disk, rank)
        try:
            if known:
                return _load_newest(disk, rank, known[-1])
        except FileNotFoundError as gone:  # swept by a later owner while we looked: look again
            missing = gone
    if missing is not None:
        raise Damaged(f"{missing.filename}: this manifest is missing, and a later one needs it.") from missing
    return None


def _load_newest(disk: Disk, rank: int, newest_epoch: int) -> Manifest:
    newest = _load(disk, rank, newest_epoch)
    if newest.state != "opening":
        return newest
    for epoch in range(newest_epoch - 1, 0, -1):  # by name: none of these goes before a later one is settled
        older = _load(disk, rank, epoch)
        if older.state != "opening":
            own = tuple(term for term in newest.terms if term.epoch == newest.epoch)
            settled = tuple(term for term in older.terms if term.from_step is not None)
            return msgspec.structs.replace(older, epoch=newest.epoch, state="opening", terms=(*settled, *own))
    return newest


def _load(disk: Disk, rank: int, epoch: int) -> Manifest:
    path = names.manifest(rank, epoch)
    manifest = document.load(disk, path, "manifest", Manifest)
    if (manifest.epoch, manifest.writer) != (epoch, rank):
        raise Damaged(f"{path}: belongs to epoch {manifest.epoch} of writer {manifest.writer}.")
    return manifest


def load_identity(disk: Disk, url: str) -> Identity:
    """What run this is; NotARun when the directory holds none."""
    try:
        return document.load(disk, names.RUN, "run", Identity)
    except FileNotFoundError as none:
        raise NotARun(f"{url}: this directory holds no run (no {names.RUN} in it). Check the path.") from none


def start_identity(disk: Disk, identity: Identity) -> bool:
    """Write run.json; False when another process was first."""
    return claim(disk, names.RUN, document.pack("run", identity))


def claim_epoch(disk: Disk, manifest: Manifest) -> bool:
    """Make `manifest.epoch` ours; False when another process was first."""
    return claim(disk, names.manifest(manifest.writer, manifest.epoch), document.pack("manifest", manifest))
