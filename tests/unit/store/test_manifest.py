"""The manifest decides: one writer per epoch, every change durable or undone, names of others left alone."""

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from everstep.errors import Damaged, Fenced, NotARun
from everstep.store import document, names, witness
from everstep.store.disk import LocalDisk
from everstep.store.manifest import (
    Book,
    Identity,
    Manifest,
    claim_epoch,
    epochs,
    load_identity,
    load_newest,
    start_identity,
)  # fmt: skip

RUN = "0" * 32


def manifest(epoch: int = 1, state: Literal["opening", "open"] = "open") -> Manifest:
    return Manifest(RUN, 0, 1, epoch, state, -1, (), (), ())


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    (tmp_path / "w00000").mkdir()
    return LocalDisk(str(tmp_path))


def test_an_epoch_is_claimed_once(disk: LocalDisk) -> None:
    assert claim_epoch(disk, manifest())
    assert not claim_epoch(disk, manifest())
    assert load_newest(disk, 0) == manifest()


def test_the_highest_epoch_counts(disk: LocalDisk) -> None:
    for epoch in (9, 10, 2):
        claim_epoch(disk, manifest(epoch))
    assert epochs(disk, 0) == [2, 9, 10]
    assert load_newest(disk, 0).epoch == 10  # type: ignore[union-attr]


def test_an_epoch_that_is_still_opening_says_what_the_settled_one_before_it_says_now(disk: LocalDisk) -> None:
    claim_epoch(disk, manifest(1))
    book = Book(disk, manifest(1))
    book.change(lambda held: msgspec.structs.replace(held, acknowledged=7))
    claim_epoch(disk, manifest(2, "opening"))  # from a copy that was read before the change
    found = load_newest(disk, 0)
    assert found is not None
    assert (found.epoch, found.state, found.acknowledged) == (2, "opening", 7)


def test_an_epoch_that_is_still_opening_needs_the_one_before_it(disk: LocalDisk) -> None:
    claim_epoch(disk, manifest(5, "opening"))
    with pytest.raises(Damaged, match="missing"):
        load_newest(disk, 0)


def test_a_change_is_on_disk_when_it_returns(disk: LocalDisk) -> None:
    claim_epoch(disk, manifest())
    book = Book(disk, manifest())
    changed = book.change(lambda held: msgspec.structs.replace(held, acknowledged=7))
    assert load_newest(disk, 0) == changed == book.manifest


def test_a_writer_that_was_taken_over_changes_nothing_any_more(disk: LocalDisk) -> None:
    claim_epoch(disk, manifest(1))
    book = Book(disk, manifest(1))
    claim_epoch(disk, manifest(2))
    with pytest.raises(Fenced):
        book.change(lambda held: held)
    with pytest.raises(Fenced):
        book.check()


def test_a_writer_whose_manifest_was_removed_is_fenced_too(disk: LocalDisk) -> None:
    claim_epoch(disk, manifest(1))
    book = Book(disk, manifest(1))
    disk.remove(book.path)
    with pytest.raises(Fenced):
        book.check()


def test_a_change_that_fails_to_publish_changes_nothing(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    claim_epoch(disk, manifest())
    book = Book(disk, manifest())

    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(disk, "write", full)
    with pytest.raises(OSError, match="no space"):
        book.change(lambda held: msgspec.structs.replace(held, acknowledged=7))
    assert book.manifest.acknowledged == -1
    assert load_newest(disk, 0) == manifest()
    assert disk.names("w00000") == ["e00000001.json"]


def test_a_manifest_under_another_epoch_s_name_is_damage(disk: LocalDisk) -> None:
    claim_epoch(disk, manifest(1))
    disk.rename(names.manifest(0, 1), names.manifest(0, 2))
    with pytest.raises(Damaged, match="epoch 1"):
        load_newest(disk, 0)


@pytest.mark.parametrize("left", ["e00000001-00000000.seg", "e00000001.ack", "b000000000000-e00000001.json"])
def test_files_without_a_manifest_are_damage(disk: LocalDisk, left: str) -> None:
    disk.close(disk.create(f"w00000/{left}"))
    with pytest.raises(Damaged, match="manifest is missing"):
        load_newest(disk, 0)


@pytest.mark.parametrize("left", ["lease", ".e00000001.json.0123456789ab.tmp", "notes.txt"])
def test_a_writer_that_never_got_a_manifest_has_none(disk: LocalDisk, left: str) -> None:
    disk.close(disk.create(f"w00000/{left}"))
    assert load_newest(disk, 0) is None


def test_an_identity_is_written_once(disk: LocalDisk) -> None:
    with pytest.raises(NotARun):
        load_identity(disk, "here")
    assert start_identity(disk, Identity(RUN, "now", "1"))
    assert not start_identity(disk, Identity("1" * 32, "now", "1"))
    assert load_identity(disk, "here").run == RUN


def test_a_document_is_the_same_bytes_for_the_same_content() -> None:
    assert document.pack("manifest", manifest()) == document.pack("manifest", manifest())


OURS = [
    ("e00000012.json", 12), ("e00000012.ack", 12), ("e00000012-00000003.seg", 12), ("b000000000009-e00000012.json", 12),
    ("b000000000009-e00000012.safetensors", 12), (".e00000012.json.0123456789ab.tmp", 12), ("lease", None),
    ("e12.json", None), ("notes.txt", None), (".e00000012.json.tmp", None), ("e00000012.json.bak", None),
]  # fmt: skip


@pytest.mark.parametrize("name, epoch", OURS)
def test_a_name_tells_the_epoch_that_wrote_it(name: str, epoch: int | None) -> None:
    assert names.epoch_of(name) == epoch


def test_names_that_are_made_are_names_that_parse() -> None:
    for path in (
        names.manifest(0, 7),
        names.witness(0, 7),
        names.segment(0, 7, 8),
        names.base(0, 9, 7),
        names.tensors(0, 9, 7),
    ):
        assert names.epoch_of(names.short(path)) == 7


def test_a_witness_that_is_gone_or_torn_says_nothing(disk: LocalDisk, tmp_path: Path) -> None:
    assert witness.load(disk, 0, 1) is None
    whole = witness.pack(1, ((3, 17), (40, 41)))
    for length in range(witness.HEAD.size):
        (tmp_path / names.witness(0, 1)).write_bytes(whole[:length])
        assert witness.load(disk, 0, 1) is None
    (tmp_path / names.witness(0, 1)).write_bytes(whole)
    assert witness.load(disk, 0, 1) == witness.Noted(41, ((3, 17), (40, 41)))


def test_a_witness_whose_stretches_are_torn_says_its_step_alone(disk: LocalDisk, tmp_path: Path) -> None:
    whole = witness.pack(1, ((3, 17), (40, 41)))
    torn = [whole[:length] for length in range(witness.HEAD.size, len(whole))]
    torn += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(witness.HEAD.size, len(whole))]
    for data in torn:
        (tmp_path / names.witness(0, 1)).write_bytes(data)
        assert witness.load(disk, 0, 1) == witness.Noted(41, ((41, 41),))


def test_a_witness_names_the_newest_stretches_and_never_grows_beyond_them(disk: LocalDisk, tmp_path: Path) -> None:
    many = tuple((4 * at, 4 * at + 1) for at in range(1000))
    assert len(witness.pack(1, many)) == witness.BYTES_MAX
    (tmp_path / names.witness(0, 1)).write_bytes(witness.pack(1, many) + b"of a longer one before")
    assert witness.load(disk, 0, 1) == witness.Noted(3997, many[-witness.SPANS_MAX :])
