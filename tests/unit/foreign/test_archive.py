"""The zip container: a member is a checked range of bytes, and everything torch never writes is refused."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from everstep.errors import Damaged, EverstepError, Unsupported
from everstep.foreign import archive
from everstep.foreign.files import File


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as written:
        for name, content in members.items():
            written.writestr(name, content)
    return target.getvalue()


TWO = {"a/data.pkl": b"description", "a/data/0": bytes(range(100))}


def listed(path: Path, content: bytes, start: int = 0, nbytes: int | None = None) -> dict[str, archive.Member]:
    path.write_bytes(content)
    with File(str(path)) as file:
        return dict(archive.members(file, start, nbytes))


def test_members_are_ranges_of_the_file(tmp_path: Path) -> None:
    content = packed(TWO)
    found = listed(tmp_path / "f", content)
    assert {name: content[one.offset : one.offset + one.nbytes] for name, one in found.items()} == {
        "data.pkl": b"description", "data/0": bytes(range(100)),
    }  # fmt: skip
    assert found["data/0"].crc32 == zlib.crc32(bytes(range(100)))


def test_an_archive_inside_a_larger_file_is_found_at_its_place(tmp_path: Path) -> None:
    inner = packed(TWO)
    content = b"x" * 77 + inner + packed(TWO) + b"y" * 5
    found = listed(tmp_path / "f", content, 77, len(inner))
    assert content[found["data/0"].offset :][:100] == bytes(range(100))


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(6.0)}, tmp_path / "f")
    with File(str(tmp_path / "f")) as file:
        found = archive.members(file)
        assert archive.content(file, found["data/0"]) == torch.arange(6.0).numpy().tobytes()


def test_a_changed_byte_is_named_with_its_member(tmp_path: Path) -> None:
    content = bytearray(packed(TWO))
    found = listed(tmp_path / "f", bytes(content))
    content[found["data/0"].offset + 50] ^= 1
    (tmp_path / "f").write_bytes(content)
    with File(str(tmp_path / "f")) as file:
        archive.verify(file, found["data.pkl"])
        with pytest.raises(Damaged, match=r"'a/data/0'.*Other members of the file are not concerned"):
            archive.verify(file, found["data/0"])


def test_an_archive_without_checksums_is_read_unchecked(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(6.0)}, tmp_path / "f")
    finally:
        torch.serialization.set_crc32_options(True)
    with File(str(tmp_path / "f")) as file:
        assert {member.crc32 for member in archive.members(file).values()} == {None}


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_are_unsupported(method: int, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="compressed"):
        listed(tmp_path / "f", packed(TWO, method))


def entry(content: bytes, at: int) -> int:
    """Where the n-th entry of the directory begins."""
    place = content.index(b"PK\x01\x02")
    for _ in range(at):
        place = content.index(b"PK\x01\x02", place + 4)
    return place


def changed(at: int, offset: int, layout: str, value: int) -> bytes:
    """Two members, with one number of a directory's entry changed."""
    content = bytearray(packed(TWO))
    struct.pack_into(layout, content, entry(bytes(content), at) + offset, value)
    return bytes(content)


def ending(offset: int, layout: str, value: int) -> bytes:
    content = bytearray(packed(TWO))
    struct.pack_into(layout, content, len(content) - 22 + offset, value)
    return bytes(content)


LIES = {
    "a second member in the first one's place": changed(1, 42, "<L", 0),
    "a member longer than the archive": changed(1, 20, "<Q", 0xFFFFFF_00FFFFFF),
    "a member that reaches into the directory": changed(1, 20, "<Q", 140 | 140 << 32),
    "two sizes of one member": changed(1, 20, "<L", 99),
    "64-bit sizes that are not there": changed(0, 20, "<L", 0xFFFFFFFF),
    "a 64-bit place that is not there": changed(0, 42, "<L", 0xFFFFFFFF),
    "a header that is elsewhere": changed(0, 42, "<L", 7),
    "encrypted": changed(0, 8, "<H", 1),
    "another disk": changed(0, 34, "<H", 1),
    "more members than there are": ending(10, "<H", 9),
    "fewer members than there are": ending(10, "<H", 1),
    "millions of members": ending(10, "<H", 0xFFFE),
    "a directory elsewhere": ending(16, "<L", 3),
    "a directory of another length": ending(12, "<L", 3),
    "a comment": ending(20, "<H", 4) + b"text",
    "something behind it": packed(TWO) + b"x",
    "nothing": b"",
    "another name in the header": packed(TWO).replace(b"a/data/0", b"a/data/1", 1),
    "a name that is no text": packed(TWO).replace(b"a/data/0", b"a/data/\xff"),
    "one name twice": packed({"a/x": b"1", "b/x": b"2"}),
    "several folders": packed({"a/x": b"1", "b/y": b"2"}),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES.keys())
def test_a_directory_that_lies_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(EverstepError, match="f: "):
        listed(tmp_path / "f", content)


def test_any_prefix_of_an_archive_is_refused(tmp_path: Path) -> None:
    content = packed(TWO)
    for length in range(len(content)):
        with pytest.raises(EverstepError):
            listed(tmp_path / "f", content[:length])


def test_a_window_beyond_the_file_is_refused(tmp_path: Path) -> None:
    content = packed(TWO)
    with pytest.raises(Damaged, match="expected"):
        listed(tmp_path / "f", content, 0, len(content) + 1)


def test_sizes_beyond_32_bits_are_read(tmp_path: Path) -> None:
    content = packed(TWO)
    at = entry(content, 1)
    name, (offset,) = b"a/data/0", struct.unpack_from("<L", content, at + 42)
    wide = bytearray(content[at : at + 46]) + name + struct.pack("<2H3Q", 1, 24, 100, 100, offset)
    struct.pack_into("<2L", wide, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", wide, 30, 28)
    struct.pack_into("<L", wide, 42, 0xFFFFFFFF)
    begin = entry(content, 0)
    directory = content[begin:at] + bytes(wide)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), begin, 0)
    assert listed(tmp_path / "f", content[:begin] + directory + end)["data/0"].nbytes == 100
