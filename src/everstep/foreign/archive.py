"""The zip container of torch.save, alone in a file or embedded in a larger one.

Members are stored, never compressed, so a tensor is a range of the file, and the container holds a CRC-32 of it that
torch itself does not check when it loads. The central directory is read here and not by `zipfile`: a window of a file
is enough, and everything torch never writes (compression, encryption, comments, overlaps, several disks) is refused.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from everstep.errors import Damaged, Unsupported
from everstep.foreign.files import File

MEMBERS_MAX = 1 << 20
NAME_BYTES_MAX = 4096

END = struct.Struct("<4s4H2LH")
END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_64 = struct.Struct("<4sLQL")
ENTRY = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")
SATURATED_16, SATURATED_32 = 0xFFFF, 0xFFFFFFFF
ENCRYPTED = 1 | 1 << 6 | 1 << 13


@dataclass(frozen=True, slots=True)
class Member:
    """The raw bytes of one member: where in the file they are, and their checksum, if it was computed."""

    path: str
    name: str
    offset: int
    nbytes: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a file that is the archive."""

    file: File
    start: int
    nbytes: int

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.nbytes:
            raise self.damaged(f"bytes {offset} to {offset + length} are outside the archive")
        return self.file.read(self.start + offset, length)

    def damaged(self, what: str) -> Damaged:
        return Damaged(
            f"{self.file.path}: the archive at byte {self.start} is damaged: {what}. Copy the file again; "
            f"other files of the checkpoint are not concerned."
        )


def members(file: File, start: int = 0, nbytes: int | None = None) -> Mapping[str, Member]:
    """Every member by its name, without the archive's top folder. The archive is all of [start, start + nbytes)."""
    window = Window(file, start, file.size - start if nbytes is None else nbytes)
    file.inside(window.start, window.nbytes)
    count, offset, length = _directory(window)
    found = _entries(window, count, offset, window.read(offset, length))
    ranges = sorted(found, key=lambda each: each[0])
    if ranges and ranges[-1][1].offset + ranges[-1][1].nbytes > start + offset:
        raise window.damaged("a member reaches into the directory")
    for (_, one), (header, two) in pairwise(ranges):
        if one.offset + one.nbytes > start + header:
            raise window.damaged(f"the members {one.name!r} and {two.name!r} overlap")
    if not any(member.crc32 for _, member in ranges):  # torch.serialization.set_crc32_options(False)
        ranges = [(header, replace(member, crc32=None)) for header, member in ranges]
    named = {member.name.partition("/")[2]: member for _, member in ranges}
    if len(named) != len(ranges) or len({member.name.partition("/")[0] for member in named.values()}) != 1:
        raise window.damaged("two members have one name, or not one folder holds them all")
    return named


def content(file: File, member: Member) -> bytes:
    """A member's bytes, checked. For the small ones; tensors are read by whoever wants them."""
    verify(file, member)
    return file.read(member.offset, member.nbytes)


def verify(file: File, member: Member) -> None:
    """Read exactly this member's bytes, in blocks, and compare their checksum."""
    if member.crc32 is not None and file.crc32(member.offset, member.nbytes) != member.crc32:
        raise Damaged(
            f"{file.path}: the member {member.name!r} (bytes {member.offset} to {member.offset + member.nbytes}) fails "
            f"its checksum. Other members of the file are not concerned. Copy the file again, or from a replica."
        )


def _directory(window: Window) -> tuple[int, int, int]:
    """How many entries, where, and how long."""
    end = window.nbytes - END.size
    signature, *disks, count, length, offset, comment = END.unpack(window.read(end, END.size))
    if signature != b"PK\x05\x06" or comment:
        raise window.damaged("it does not end with a zip directory (cut short, or followed by something else)")
    here, begins, on_disk = disks
    if window.nbytes >= END.size + LOCATOR_64.size:
        locator, disk, where, total = LOCATOR_64.unpack(window.read(end - LOCATOR_64.size, LOCATOR_64.size))
        if locator == b"PK\x06\x07":
            end = end - LOCATOR_64.size - END_64.size
            said = END_64.unpack(window.read(end, END_64.size))
            if said[0] != b"PK\x06\x06" or said[1] != END_64.size - 12 or where != end or disk or total != 1:
                raise window.damaged("its 64-bit directory is not where it should be")
            for short, full, top in zip(
                (count, length, offset), said[7:], (SATURATED_16, *[SATURATED_32] * 2), strict=True
            ):
                if short not in (full, top):
                    raise window.damaged("its two directories differ")
            _, _, _, _, here, begins, on_disk, count, length, offset = said
    if here or begins or on_disk not in (count, SATURATED_16) or offset + length != end:
        raise window.damaged("its directory is not where it should be")
    if count > MEMBERS_MAX or count * ENTRY.size > length:
        raise window.damaged(f"its directory claims {count} members in {length} bytes")
    return count, offset, length


def _entries(window: Window, count: int, offset: int, directory: bytes) -> list[tuple[int, Member]]:
    """Each member with the place of its header."""
    found, at = [], 0
    for _ in range(count):
        if at + ENTRY.size > len(directory):
            raise window.damaged(f"its directory ends early, at byte {offset + at}")
        signature, _, _, flags, method, _, _, crc, packed, full, *sizes, disk, _, _, header = ENTRY.unpack_from(
            directory, at
        )
        named, extra, comment = sizes
        after = at + ENTRY.size + named
        if signature != b"PK\x01\x02" or named > NAME_BYTES_MAX or after + extra + comment > len(directory):
            raise window.damaged(f"its directory is not readable at byte {offset + at}")
        name = _text(window, directory[at + ENTRY.size : after])
        full, packed, header = _wide(window, name, directory[after : after + extra], (full, packed, header))
        if method or full != packed:
            raise Unsupported(f"{window.file.path}: the member {name!r} is compressed; torch.save never does that.")
        if flags & ENCRYPTED or disk:
            raise Unsupported(f"{window.file.path}: the member {name!r} is encrypted or on another disk.")
        found.append((header, _located(window, name, header, full, crc)))
        at = after + extra + comment
    if at != len(directory):
        raise window.damaged("its directory holds more than its members")
    return found


def _wide(window: Window, name: str, extra: bytes, short: tuple[int, int, int]) -> tuple[int, int, int]:
    """The 64-bit values of those that do not fit into 32, from the entry's extra field 1."""
    wanted, at = [value == SATURATED_32 for value in short], 0
    while any(wanted) and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            if length != 8 * sum(wanted) or at + 4 + length > len(extra):
                break
            given = iter(struct.unpack_from(f"<{sum(wanted)}Q", extra, at + 4))
            full, packed, header = (next(given) if wide else value for wide, value in zip(wanted, short, strict=True))
            return full, packed, header
        at += 4 + length
    if any(wanted):
        raise window.damaged(f"the member {name!r} lacks its 64-bit sizes")
    return short


def _located(window: Window, name: str, header: int, nbytes: int, crc: int) -> Member:
    """Where the bytes begin: only the member's own header says how long it is."""
    signature, *_, named, extra = LOCAL.unpack(window.read(header, LOCAL.size))
    if signature != b"PK\x03\x04" or named > NAME_BYTES_MAX:
        raise window.damaged(f"the member {name!r} has no header at byte {header}")
    if _text(window, window.read(header + LOCAL.size, named)) != name:
        raise window.damaged(f"the member {name!r} has another name in its header")
    begins = header + LOCAL.size + named + extra
    if begins + nbytes > window.nbytes:
        raise window.damaged(f"the member {name!r} reaches beyond the end")
    return Member(window.file.path, name, window.start + begins, nbytes, crc)


def _text(window: Window, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as wrong:
        raise window.damaged("a member's name is no text") from wrong
