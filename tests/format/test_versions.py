"""What a newer everstep wrote is refused by name, in every kind of file, and nothing is changed."""

import struct
from pathlib import Path
from typing import Any

import pytest
import xxhash

import everstep
from everstep.codec import tree
from everstep.errors import Damaged, UnknownFormat
from everstep.log import frame
from everstep.store import base, document
from everstep.store.manifest import Identity, Manifest
from tests.format import make_golden, vectors
from tests.hostile.forge import envelope, with_base, with_records
from tests.hostile.tiny import files_of, write_files

PAGE = vectors.on_the_page()
KINDS: list[tuple[str, type]] = [("run", Identity), ("manifest", Manifest), ("base", base.Index)]


@pytest.mark.parametrize("kind, shape", KINDS)
@pytest.mark.parametrize("version", [2, 3, 10**6])
def test_a_document_of_a_newer_format_is_refused_by_its_number(kind: str, shape: type, version: int) -> None:
    for text in (b'{"anything":1}', b"[]"):
        with pytest.raises(UnknownFormat, match=f"format {version}"):
            document.parse(envelope(kind, text, version), kind, shape, name="file")


def test_a_newer_document_may_look_otherwise_but_for_kind_and_format() -> None:
    with pytest.raises(UnknownFormat, match="format 2"):
        document.parse(b'{"everstep":"run","format":2,"signature":"x"}', "run", Identity, name="file")


@pytest.mark.parametrize("version", [0, -1])
def test_a_format_below_one_is_damage(version: int) -> None:
    with pytest.raises(Damaged):
        document.parse(envelope("run", b"{}", version), "run", Identity, name="file")


@pytest.mark.parametrize("version", [0, 2, (1 << 32) - 1])
def test_a_segment_of_another_version_is_refused_by_its_number(version: int) -> None:
    head = PAGE["segment-head"][:8] + struct.pack("<I", version) + PAGE["segment-head"][12:120]
    with pytest.raises(UnknownFormat, match=f"format {version}"):
        frame.parse_head(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)))


def test_a_flipped_bit_in_the_version_is_damage_and_not_a_newer_version() -> None:
    for bit in range(32):
        head = bytearray(PAGE["segment-head"])
        head[8 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(frame.BadFrame):
            frame.parse_head(head)


@pytest.mark.parametrize("kind, reserved", [(0, 0), (3, 0), (1 << 31, 0), (1, 1)])
def test_a_record_of_unknown_kind_is_refused_by_its_number(kind: int, reserved: int) -> None:
    head = frame.FRAME.pack(frame.MAGIC, kind, 8, 1, 1, 0, 0, reserved, 0)[:56]
    with pytest.raises(UnknownFormat, match=f"kind {kind}"):
        frame.parse(head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head, 7)), chain=7, room=1000)


def test_an_unknown_form_in_a_tree_is_named() -> None:
    with pytest.raises(Damaged, match="'decimal'"):
        tree.decode({"$": "decimal", "v": "1"}, {}.__getitem__)


def newer_run(files: dict[str, bytes], part: str) -> dict[str, bytes]:
    path = {"run": "run.json", "manifest": "w00000/e00000002.json"}[part]
    return files | {path: files[path].replace(b'"format":1', b'"format":2')}


@pytest.mark.parametrize("part", ["run", "manifest"])
def test_a_newer_run_is_refused_for_reading_and_for_training_and_stays_as_it_is(tmp_path: Path, part: str) -> None:
    files = newer_run(files_of(make_golden.HERE / "run"), part)
    root = write_files(files, tmp_path / "run")
    with pytest.raises(UnknownFormat):
        everstep.restore(root)
    with pytest.raises(UnknownFormat):
        make_golden.train(root, {}, 1)
    files.setdefault("w00000/lease", b"")
    assert {name: data for name, data in files_of(root).items() if "lease" not in name} == {
        name: data for name, data in files.items() if "lease" not in name
    }


def test_keys_that_a_later_version_adds_to_a_document_or_a_record_are_passed_over(tmp_path: Path) -> None:
    files = files_of(make_golden.HERE / "run")

    def more(index: dict[str, Any]) -> None:
        index["added"] = {"later": [1, 2]}
        index["content"]["added"] = 5

    def longer(_step: int, pieces: Any) -> Any:
        return pieces[0] | {"added": 1}, pieces[1]

    files = with_records(with_base(files, 3, 1, more), 2, 1, longer)
    step = max(map(int, vectors_expected()))
    assert everstep.restore(write_files(files, tmp_path / "run")).step == step


def vectors_expected() -> dict[str, Any]:
    import json

    return json.loads((make_golden.HERE / "expected.json").read_text())
