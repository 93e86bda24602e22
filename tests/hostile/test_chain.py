"""A record cannot be dropped, repeated, moved or taken from another history; a file cannot be missing unnoticed."""

import itertools
from pathlib import Path

import msgspec
import pytest

from everstep.errors import Damaged, EverstepError, NotARun
from everstep.log import frame
from everstep.log.inventory import survey
from everstep.store import document
from everstep.store.manifest import Manifest
from tests.hostile.tiny import Files, Memory, W, files_of, prove, train

SEALED = W + "e00000001-00000001.seg"
MANIFEST = W + "e00000002.json"


def records(files: Files, path: str) -> tuple[bytes, list[bytes]]:
    """A segment as its head and its records."""
    data, found = files[path], []
    for entry, scanned in survey(Memory(files), "run").segments:
        if f"{W}e{entry.epoch:08d}-{entry.sequence:08d}.seg" == path:
            found = [data[r.offset - 64 : r.offset - 64 + r.frame.nbytes] for r in scanned.records]
    return data[: frame.SEGMENT_BYTES], found


def resealed(files: Files, path: str, data: bytes) -> Files:
    """The segment replaced, and the manifest told its new length, as a careful liar would."""
    manifest = document.parse(files[MANIFEST], "manifest", Manifest, name="")
    epoch, sequence = int(path[8:16]), int(path[17:25])
    segments = tuple(
        msgspec.structs.replace(entry, nbytes=len(data))
        if (entry.epoch, entry.sequence) == (epoch, sequence)
        else entry
        for entry in manifest.segments
    )
    changed = msgspec.structs.replace(manifest, segments=segments)
    return files | {path: data, MANIFEST: document.pack("manifest", changed)}


@pytest.fixture
def parts(runs: tuple[Files, Files]) -> tuple[bytes, list[bytes]]:
    head, found = records(runs[0], SEALED)
    assert len(found) >= 2
    return head, found


def test_every_dropped_record_is_noticed(runs: tuple[Files, Files], parts: tuple[bytes, list[bytes]]) -> None:
    head, found = parts
    for at in range(len(found)):
        rest = head + b"".join(found[:at] + found[at + 1 :])
        with pytest.raises(EverstepError):
            prove(Memory(resealed(runs[0], SEALED, rest)))


def test_every_repeated_record_is_noticed(runs: tuple[Files, Files], parts: tuple[bytes, list[bytes]]) -> None:
    head, found = parts
    for at in range(len(found)):
        with pytest.raises(EverstepError):
            prove(Memory(resealed(runs[0], SEALED, head + b"".join([*found[: at + 1], *found[at:]]))))


def test_every_other_order_of_records_is_noticed(runs: tuple[Files, Files], parts: tuple[bytes, list[bytes]]) -> None:
    head, found = parts
    for order in itertools.permutations(range(len(found))):
        if list(order) != sorted(order):
            with pytest.raises(EverstepError):
                prove(Memory(resealed(runs[0], SEALED, head + b"".join(found[at] for at in order))))


@pytest.mark.parametrize("other", ["e00000001-00000000.seg", "e00000002-00000000.seg", "e00000002-00000001.seg"])
def test_a_segment_of_another_epoch_or_place_is_refused(runs: tuple[Files, Files], other: str) -> None:
    with pytest.raises(Damaged):
        prove(Memory(resealed(runs[0], SEALED, runs[0][W + other])))


def test_a_segment_of_another_run_is_refused(runs: tuple[Files, Files], tmp_path: Path) -> None:
    train(tmp_path / "other", 5)
    theirs = files_of(tmp_path / "other")[SEALED]
    with pytest.raises(Damaged, match="belongs to"):
        prove(Memory(resealed(runs[0], SEALED, theirs)))


def test_a_segment_of_another_rank_is_refused(runs: tuple[Files, Files]) -> None:
    data = runs[0][SEALED]
    parsed = frame.parse_head(data[:128])
    head, _ = frame.pack_head(1, parsed.run, parsed.epoch, parsed.sequence, parsed.after_step, parsed.before)
    with pytest.raises(Damaged, match="writer 1"):
        prove(Memory(runs[0] | {SEALED: head + data[128:]}))


def test_a_segment_that_does_not_continue_the_one_before_it_is_refused(runs: tuple[Files, Files]) -> None:
    data = runs[0][SEALED]
    parsed = frame.parse_head(data[:128])
    head, _ = frame.pack_head(0, parsed.run, parsed.epoch, parsed.sequence, parsed.after_step, parsed.before ^ 1)
    with pytest.raises(Damaged, match="continue"):
        prove(Memory(runs[0] | {SEALED: head + data[128:]}))


MISSING = [
    ("e00000001-00000000.seg", Damaged), ("e00000002-00000001.seg", Damaged), ("b000000000001-e00000001.json", Damaged),
    ("b000000000001-e00000001.safetensors", Damaged), ("e00000002.json", Damaged), ("run.json", NotARun),
]  # fmt: skip


@pytest.mark.parametrize("name, error", MISSING)
def test_a_missing_file_is_noticed(runs: tuple[Files, Files], name: str, error: type[EverstepError]) -> None:
    rest = {path: data for path, data in runs[0].items() if not path.endswith(name)}
    with pytest.raises(error):
        prove(Memory(rest))


def test_a_run_without_its_manifest_is_never_begun_anew(runs: tuple[Files, Files], tmp_path: Path) -> None:
    """A new epoch 1 would sweep away every file of the old one."""
    train(tmp_path / "run", 3)
    (tmp_path / "run" / "w00000" / "e00000001.json").unlink()
    before = files_of(tmp_path / "run")
    with pytest.raises(Damaged, match="manifest is missing"):
        train(tmp_path / "run", 1)
    assert files_of(tmp_path / "run").keys() == before.keys()


def test_a_base_in_the_place_of_another_is_refused(runs: tuple[Files, Files]) -> None:
    swapped = dict(runs[0])
    for kind in ("json", "safetensors"):
        swapped[f"{W}b000000000001-e00000001.{kind}"] = runs[0][f"{W}b000000000006-e00000002.{kind}"]
    with pytest.raises(Damaged):
        prove(Memory(swapped))
