"""`check` proves that nothing is missing, `verify` that nothing has changed."""

import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.errors import Damaged
from everstep.foreign.found import Checkpoint, Found, Place, check, verify
from everstep.types import Box, Tensor


def part(path: Path, low: tuple[int, ...], high: tuple[int, ...], offset: int, name: str = "model/w") -> Found:
    """A box of a tensor of 4 x 3 bytes."""
    box = Box(low, high)
    nbytes = (high[0] - low[0]) * (high[1] - low[1])
    return Found(Tensor(name, "U8", (4, 3), box, nbytes), Place(str(path), offset, nbytes))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(bytes(range(24)))
    return tmp_path / "f"


def of(*parts: Found) -> Checkpoint:
    return Checkpoint("test", "here", parts)


def test_boxes_that_tile_a_tensor_pass(file: Path) -> None:
    check(of(part(file, (0, 0), (4, 1), 0), part(file, (0, 1), (2, 3), 4), part(file, (2, 1), (4, 3), 8)))


def test_a_missing_box_is_named(file: Path) -> None:
    with pytest.raises(Damaged, match=r"4 of 12 elements of 'model/w' are missing: \[2:4, 1:3\]"):
        check(of(part(file, (0, 0), (4, 1), 0), part(file, (0, 1), (2, 3), 4)))


def test_an_overlap_is_named(file: Path) -> None:
    with pytest.raises(Damaged, match=r"\[0:2, 0:3\] and \[1:4, 0:3\] of 'model/w' overlap"):
        check(of(part(file, (0, 0), (2, 3), 0), part(file, (1, 0), (4, 3), 6)))


def test_equal_replicas_count_once(file: Path) -> None:
    file.write_bytes(bytes(12) * 2)
    check(of(part(file, (0, 0), (4, 3), 0), part(file, (0, 0), (4, 3), 12)))


def test_replicas_that_differ_are_refused(file: Path) -> None:
    with pytest.raises(Damaged, match="held twice and differs"):
        check(of(part(file, (0, 0), (4, 3), 0), part(file, (0, 0), (4, 3), 12)))


def test_a_place_beyond_its_file_is_refused(file: Path) -> None:
    with pytest.raises(Damaged, match="needs bytes 13 to 25, the file has 24"):
        check(of(part(file, (0, 0), (4, 3), 13)))


def test_a_file_that_is_gone_is_named(file: Path) -> None:
    file.unlink()
    with pytest.raises(Damaged, match=r"f: this file of the checkpoint is missing"):
        check(of(part(file, (0, 0), (4, 3), 0)))


def test_parts_of_two_types_are_refused(file: Path) -> None:
    one, two = part(file, (0, 0), (2, 3), 0), part(file, (2, 0), (4, 3), 6)
    other = replace(two, tensor=Tensor("model/w", "I8", (4, 3), two.tensor.box, 6))
    with pytest.raises(Damaged, match="differ in element type or shape"):
        check(of(one, other))


def test_a_box_outside_its_tensor_is_refused(file: Path) -> None:
    with pytest.raises(Damaged, match="leaves the shape"):
        check(of(part(file, (0, 0), (5, 3), 0)))


def test_an_alias_of_nothing_is_refused(file: Path) -> None:
    whole = of(part(file, (0, 0), (4, 3), 0))
    check(replace(whole, aliases={"model/v": "model/w"}))
    with pytest.raises(Damaged, match="'model/v' is another name of 'model/x', which is missing"):
        check(replace(whole, aliases={"model/v": "model/x"}))


def checked(file: Path, crc: int | None) -> Found:
    found = part(file, (0, 0), (4, 3), 6)
    return replace(found, place=replace(found.place, crc32=crc, covers=(2, 20)))


def test_a_checksum_covers_the_range_around_a_place(file: Path) -> None:
    assert verify(of(checked(file, zlib.crc32(bytes(range(2, 22)))))) == 20


def test_a_wrong_checksum_is_named_with_what_is_still_good(file: Path) -> None:
    good = replace(checked(file, zlib.crc32(bytes(range(2, 22)))))
    bad = replace(good, tensor=replace_name(good.tensor, "model/b"), place=replace(good.place, crc32=1))
    with pytest.raises(Damaged, match=r"'model/b' .*f, bytes 2 to 22.*the other 1 parts are intact"):
        verify(of(good, bad))


def test_a_range_is_read_once_for_all_its_tensors(file: Path) -> None:
    found = checked(file, zlib.crc32(bytes(range(2, 22))))
    assert verify(of(found, found, found)) == 20


def test_without_checksums_nothing_is_proved(file: Path) -> None:
    assert verify(of(checked(file, None))) == 0


def replace_name(tensor: Tensor, name: str) -> Tensor:
    return Tensor(name, tensor.dtype, tensor.shape, tensor.box, tensor.nbytes)
