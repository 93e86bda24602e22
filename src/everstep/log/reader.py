"""Finds the records of a segment, in order, and tells a torn tail from damage.

The first bad record ends a growing segment: a crash tears the tail, in any way. It is damage when the segment was
sealed beyond it, when a witness saw a later step acknowledged, or when a later record says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from everstep.errors import Damaged, UnknownFormat
from everstep.log import frame
from everstep.log.frame import BadFrame, Frame
from everstep.store import names
from everstep.store.disk import Disk, Source
from everstep.store.manifest import Manifest, Segment


@dataclass(frozen=True, slots=True)
class Located:
    """A record and where its body lies."""

    frame: Frame
    path: str
    offset: int

    @property
    def step(self) -> int:
        return self.frame.step


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a segment holds. `tail_bytes` after `end` were torn by a crash or cut off; `chain` seeds what follows.

    `damage` says why records that were acknowledged are not among `records`; None when nothing is missing.
    """

    records: tuple[Located, ...]
    end: int
    chain: int
    tail_bytes: int
    damage: Damaged | None = None


def scan(disk: Disk, manifest: Manifest, entry: Segment, *, before: int | None, acknowledged: int) -> Scanned:
    """The records of one segment. `before` is the chain it must continue (None: unknown), `acknowledged` what a
    witness saw.

    Bodies are checked only where a tear is possible; whoever uses a body checks it then (`body`).
    """
    path = names.segment(manifest.writer, entry.epoch, entry.sequence)
    try:
        source = disk.source(path)
    except FileNotFoundError:
        what = "this segment is missing"
        return Scanned(
            (), 0, 0, 0, Damaged(_message(path, 0, what, entry.after_step, entry.last_step), intact=entry.after_step)
        )
    except OSError as refused:  # a link, a pipe, a directory in its place, or a disk that cannot read
        what = f"cannot be read ({refused.strerror})"
        return Scanned(
            (), 0, 0, 0, Damaged(_message(path, 0, what, entry.after_step, entry.last_step), intact=entry.after_step)
        )
    try:
        return _Scan(source, path, manifest, entry, acknowledged).run(before)
    finally:
        source.close()


def body(source: Source, record: Located) -> memoryview:
    """A record's body, checked; Damaged when it is not what was written."""
    found = record.frame
    try:
        data = memoryview(bytearray(found.nbytes - frame.FRAME.size))
        source.read_into(record.offset, data)
        frame.check_body(found, data)
    except (BadFrame, EOFError, OSError) as bad:
        raise Damaged(_message(record.path, record.offset, str(bad), found.step - 1), intact=found.step - 1) from bad
    return data[: found.body_bytes]


class _Scan:
    def __init__(self, source: Source, path: str, manifest: Manifest, entry: Segment, acknowledged: int) -> None:
        self._source = source
        self._path = path
        self._entry = entry
        self._manifest = manifest
        self._sealed = entry.nbytes is not None
        self._end = source.size if entry.nbytes is None else entry.nbytes
        self._acknowledged = acknowledged
        self._last = entry.after_step
        self._short = 0

    def run(self, before: int | None) -> Scanned:
        records: list[Located] = []
        offset = chain = 0
        damage: Damaged | None = None
        try:
            if self._end > self._source.size:
                self._end, self._short = self._source.size, self._end
            chain, offset = self._head(before), frame.SEGMENT_BYTES
            for record in self._frames(chain):
                records.append(record)
                offset, chain, self._last = (
                    record.offset - frame.FRAME.size + record.frame.nbytes,
                    record.frame.chain,
                    record.step,
                )
            ends = self._entry.last_step if self._sealed else self._acknowledged
            if self._short or (ends is not None and self._last < ends):
                raise self._damaged(
                    offset, "the file ends here" if not self._short else f"the file ends before byte {self._short}"
                )
        except BadFrame as bad:
            damage = self._damage(offset, bad)
        except (EOFError, OSError) as bad:
            damage = self._damaged(offset, f"cannot be read ({bad})")
        except Damaged as bad:
            damage = bad
        return Scanned(tuple(records), offset, chain, max(0, self._source.size - offset), damage)

    def _head(self, before: int | None) -> int:
        head = frame.parse_head(self._source.read(0, min(frame.SEGMENT_BYTES, self._end)))
        entry, manifest = self._entry, self._manifest
        if (head.run, head.rank) != (bytes.fromhex(manifest.run), manifest.writer):
            raise self._damaged(0, f"it belongs to writer {head.rank} of run {head.run.hex()}")
        if (head.epoch, head.sequence, head.after_step) != (entry.epoch, entry.sequence, entry.after_step):
            raise self._damaged(0, f"it is segment {head.sequence} of epoch {head.epoch}")
        if before is not None and head.before != before:
            raise self._damaged(0, "it does not continue the segment before it")
        return head.chain

    def _frames(self, chain: int) -> Iterator[Located]:
        offset, size = frame.SEGMENT_BYTES, self._end
        while offset < size:
            head = self._source.read(offset, min(frame.FRAME.size, size - offset))
            try:
                found = frame.parse(head, chain=chain, room=size - offset)
            except UnknownFormat as newer:
                raise UnknownFormat(f"{names.short(self._path)}, byte {offset}: {newer}") from newer
            expected = found.step == self._last + 1 if found.kind == frame.UPDATE else found.step > self._last
            if found.epoch != self._entry.epoch or not expected:
                raise BadFrame(f"step {found.step} of epoch {found.epoch} cannot follow step {self._last}")
            record = Located(found, self._path, offset + frame.FRAME.size)
            if not self._sealed and found.step > self._acknowledged:
                frame.check_body(found, self._source.read(record.offset, found.nbytes - frame.FRAME.size))
            yield record
            offset, chain = offset + found.nbytes, found.chain

    def _damage(self, offset: int, bad: BadFrame) -> Damaged | None:
        """None if a crash can have left these bytes; what is lost if they had been acknowledged."""
        if self._sealed or offset == 0 or self._last < self._acknowledged:  # a head was durable before it was named
            return self._damaged(offset, str(bad))
        try:
            rest = self._source.read(offset, self._end - offset)
        except (EOFError, OSError) as unread:
            return self._damaged(offset, f"cannot be read ({unread})")
        return self._damaged(offset, str(bad)) if frame.later_witness(rest, self._last + 1, self._entry.epoch) else None

    def _damaged(self, offset: int, what: str) -> Damaged:
        held = self._entry.last_step if self._sealed else self._acknowledged
        return Damaged(_message(self._path, offset, what, self._last, held), intact=self._last)


def _message(path: str, offset: int, what: str, intact: int, held: int | None = None) -> str:
    lost = "" if held is None or held <= intact else f"; {held} was acknowledged"
    return (
        f"segment {names.short(path)}, byte {offset}: {what}. Steps up to {intact} are intact{lost}. Restore the file "
        f"from a copy, or give up what follows with 'everstep restore --step {intact}' or run.resume(step={intact})."
    )
