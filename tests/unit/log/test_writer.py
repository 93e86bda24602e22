"""What was written is read back, in order, over any number of segments; a failed write is never trusted."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import Damaged, RunInUse
from everstep.log import frame, lease, reader
from everstep.log.writer import Record, Writer
from everstep.store.disk import LocalDisk, created
from everstep.store.manifest import Book, Manifest, Segment, Term, claim_epoch

RUN = "ab" * 16


def started(path: Path, segment_bytes: int) -> tuple[LocalDisk, Book, Writer]:
    (path / "w00000").mkdir(parents=True)
    disk = LocalDisk(str(path))
    manifest = Manifest(RUN, 0, 1, 1, "open", -1, (Term(1, None, 0, 0, "", "", 1),), (), ())
    claim_epoch(disk, manifest)
    book = Book(disk, manifest)
    return disk, book, Writer(disk, book, after_step=0, chain=0, segment_bytes=segment_bytes)


def read(disk: LocalDisk, book: Book) -> list[tuple[int, bytes]]:
    """Every record of every segment, each segment continuing the one before."""
    found, chain = [], 0
    for entry in book.manifest.segments:
        scanned = reader.scan(disk, book.manifest, entry, before=chain, acknowledged=-1)
        assert scanned.damage is None
        for record in scanned.records:
            source = disk.source(record.path)
            found.append((record.step, bytes(reader.body(source, record))))
            source.close()
        chain = scanned.chain
    return found


batches = st.lists(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4), max_size=6)


@settings(deadline=None, max_examples=40, print_blob=True)
@given(batches, st.integers(1, 800))
def test_every_record_is_read_back_in_order(tmp_path_factory: object, bodies: list[list[bytes]], limit: int) -> None:
    disk, book, writer = started(tmp_path_factory.mktemp("log"), limit)  # type: ignore[attr-defined]
    step, wrote = 0, []
    for batch in bodies:
        records = [Record(frame.UPDATE, step + 1 + at, [data]) for at, data in enumerate(batch)]
        writer.write(records, step)
        step += len(batch)
        wrote += [(record.step, bytes(record.body[0])) for record in records]
    writer.close()
    assert read(disk, book) == wrote
    assert writer.step == step
    disk.release()


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_after_a_failure_the_same_records_go_to_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    disk, book, writer = started(tmp_path / "run", 1 << 20)
    writer.write([Record(frame.UPDATE, 1, [b"one"])], 0)
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OSError(5, "input/output error")

        patch.setattr(disk, failing, fail)
        with pytest.raises(OSError, match="input/output"):
            writer.write([Record(frame.UPDATE, 2, [b"two"])], 1)
    assert writer.step == 1
    writer.write([Record(frame.UPDATE, 2, [b"two"])], 1)
    assert [entry.sequence for entry in book.manifest.segments] == [0, 1]
    assert book.manifest.segments[0].last_step == 1
    assert read(disk, book) == [(1, b"one"), (2, b"two")]


def test_a_segment_exists_once_the_manifest_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, book, writer = started(tmp_path / "run", 1 << 20)

    def fail(*_: object) -> None:
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", fail)
        with pytest.raises(OSError, match="no space"):
            writer.roll()
    assert book.manifest.segments == ()
    writer.write([Record(frame.UPDATE, 1, [b"x"])], 0)
    assert [entry.sequence for entry in book.manifest.segments] == [1]  # the first one's file is nobody's
    assert read(disk, book) == [(1, b"x")]


def test_a_record_beyond_its_place_is_not_read(tmp_path: Path) -> None:
    disk, book, writer = started(tmp_path / "run", 1 << 20)
    writer.write([Record(frame.UPDATE, 3, [b"x"])], 0)
    entry = book.manifest.segments[0]
    scanned = reader.scan(disk, book.manifest, entry, before=0, acknowledged=-1)
    assert scanned.records == ()
    assert scanned.tail_bytes == 128


def test_a_rebase_may_leave_a_gap_and_an_update_may_not(tmp_path: Path) -> None:
    disk, book, writer = started(tmp_path / "run", 1 << 20)
    writer.write([Record(frame.REBASE, 5, [b"x"]), Record(frame.UPDATE, 6, [b"y"])], 0)
    assert [step for step, _ in read(disk, book)] == [5, 6]


def test_a_missing_segment_is_damage_that_says_what_is_intact(tmp_path: Path) -> None:
    disk, book, _ = started(tmp_path / "run", 1)
    scanned = reader.scan(disk, book.manifest, Segment(1, 0, 7, 9, 500), before=None, acknowledged=-1)
    assert isinstance(scanned.damage, Damaged)
    assert scanned.damage.intact == 7


def test_one_process_at_a_time_owns_a_writer(tmp_path: Path) -> None:
    one, two = created(str(tmp_path / "run")), LocalDisk(str(tmp_path / "run"))
    first = lease.take(one, RUN, 0, opened="", take_over=False)
    with pytest.raises(RunInUse, match="process"):
        lease.take(two, RUN, 0, opened="", take_over=False)
    second = lease.take(two, RUN, 0, opened="", take_over=True)
    assert second.book.manifest.epoch == first.book.manifest.epoch + 1
    first.release()
    second.release()


def test_sweeping_removes_what_no_manifest_names_and_nothing_of_others(tmp_path: Path) -> None:
    disk = created(str(tmp_path / "run"))
    held = lease.take(disk, RUN, 0, opened="", take_over=False)
    for name in ("e00000001-00000009.seg", "b000000000001-e00000001.json", "e00000002-00000000.seg", "notes.txt"):
        disk.close(disk.create(f"w00000/{name}"))
    gone = lease.sweep(disk, held.book)
    assert sorted(gone) == ["b000000000001-e00000001.json", "e00000001-00000009.seg"]
    assert {"notes.txt", "e00000002-00000000.seg", "lease"} <= set(disk.names("w00000"))
    held.release()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pid":"x"}', b'{"pid":1}', b"\xff" * 5000])
def test_a_lease_of_any_text_has_an_owner_for_the_message(tmp_path: Path, text: bytes) -> None:
    disk = created(str(tmp_path / "run"))
    disk.make_dir("w00000")
    (tmp_path / "run" / "w00000" / "lease").write_bytes(text)
    assert lease.owner(disk, 0) == "another process"
