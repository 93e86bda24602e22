"""The bytes of a file that `torch.load(path, weights_only=True)` reads: a dict of names and tensors.

A zip archive, nothing compressed, every member 64-byte aligned so that it can be mapped:

    archive/data.pkl            the dict, in a handful of fixed opcodes, written here byte by byte
    archive/byteorder           "little"
    archive/data/0, 1, ..       the tensors' bytes
    archive/version             "3"
    archive/everstep.json       what we add; torch passes it over

Writing opcodes runs nothing and reads nothing; torch's own reader admits only what is used here. Pure: bytes in and
out.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence

from everstep.types import ALIGN, DTYPE_BYTES, Bytes, Tensor

STORAGES = {
    "F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage",
    "I64": "LongStorage", "I32": "IntStorage", "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage",
    "BOOL": "BoolStorage", "C64": "ComplexFloatStorage", "C128": "ComplexDoubleStorage",
}  # fmt: skip
NEWER = {"U64": "uint64", "U32": "uint32", "U16": "uint16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Element types that never had a storage class of their own; torch names the type instead."""
WIDE = 0xFFFFFFFF
"""Sizes and offsets from here on stand in a 64-bit field, and this number where they would have stood."""
WIDE_FROM = WIDE
COUNT_MAX = 0xFFFF
LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
VERSION = 45  # of zip, the first with 64-bit sizes
MIDNIGHT, FIRST_DAY = 0, (1 << 5) | 1  # 1980-01-01: the same state gives the same bytes


def pieces(tensors: Sequence[tuple[Tensor, Bytes]], notes: bytes) -> Iterator[Bytes]:
    """The file, piece by piece; the tensors' bytes are passed on, not copied."""
    members: list[tuple[str, Bytes]] = [
        ("data.pkl", _table([tensor for tensor, _ in tensors])),
        ("byteorder", b"little"),
        *((f"data/{at}", held) for at, (_, held) in enumerate(tensors)),
        ("version", b"3\n"),
        ("everstep.json", notes),
    ]
    offset, directory = 0, b""
    for name, held in members:
        view = memoryview(held).cast("B") if memoryview(held).nbytes else memoryview(b"")
        path, checksum = f"archive/{name}".encode(), zlib.crc32(view)
        directory += _central(path, checksum, len(view), offset)
        head = _local(path, checksum, len(view), offset)
        yield head
        yield view
        offset += len(head) + len(view)
    yield directory + _end(len(members), len(directory), offset)


def _table(tensors: Sequence[Tensor]) -> bytes:
    """The dict. Protocol 2, an empty dict, for each tensor its name and a call of torch's own constructor."""
    entries = (_text(tensor.name) + _tensor(tensor, at) for at, tensor in enumerate(tensors))
    return b"\x80\x02}(" + b"".join(entries) + b"u."


def _tensor(tensor: Tensor, at: int) -> bytes:
    shape, stride = tensor.box.shape, 1
    strides: list[int] = []
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride *= max(extent, 1)
    legacy = tensor.dtype in STORAGES
    storage = _name("torch", STORAGES[tensor.dtype]) if legacy else _name("torch.storage", "UntypedStorage")
    count = tensor.nbytes // DTYPE_BYTES[tensor.dtype] if legacy else tensor.nbytes
    pointer = b"(" + _text("storage") + storage + _text(str(at)) + _text("cpu") + _int(count) + b"tQ"
    hooks = _name("collections", "OrderedDict") + b")R"
    call = _name("torch._utils", "_rebuild_tensor_v2" if legacy else "_rebuild_tensor_v3") + b"(" + pointer + _int(0)
    call += _ints(shape) + _ints(strides) + b"\x89" + hooks
    return call + (b"" if legacy else _name("torch", NEWER[tensor.dtype])) + b"tR"


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _int(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def _ints(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(_int(value) for value in values) + b"t"


def _local(path: bytes, checksum: int, length: int, offset: int) -> bytes:
    """A member's own head, padded by an extra field so that its bytes are aligned."""
    wide = struct.pack("<2H2Q", 1, 16, length, length) if length >= WIDE_FROM else b""
    start = offset + LOCAL.size + len(path) + len(wide) + 4
    fill = -start % ALIGN
    extra = wide + b"FB" + struct.pack("<H", fill) + bytes(fill)
    size = WIDE if wide else length
    return LOCAL.pack(
        b"PK\3\4", VERSION, 0x0800, 0, MIDNIGHT, FIRST_DAY, checksum, size, size, len(path), len(extra)
    ) + path + extra  # fmt: skip


def _central(path: bytes, checksum: int, length: int, offset: int) -> bytes:
    wide = struct.pack("<2Q", length, length) if length >= WIDE_FROM else b""
    far = struct.pack("<Q", offset) if offset >= WIDE_FROM else b""
    extra = struct.pack("<2H", 1, len(wide + far)) + wide + far if wide or far else b""
    size = WIDE if wide else length
    return CENTRAL.pack(
        b"PK\1\2", VERSION, VERSION, 0x0800, 0, MIDNIGHT, FIRST_DAY, checksum, size, size, len(path), len(extra),
        0, 0, 0, 0, WIDE if far else offset,
    ) + path + extra  # fmt: skip


def _end(count: int, length: int, offset: int) -> bytes:
    end64 = END64.pack(b"PK\6\6", END64.size - 12, VERSION, VERSION, 0, 0, count, count, length, offset)
    locator = LOCATOR.pack(b"PK\6\7", 0, offset + length, 1)
    wide = offset >= WIDE_FROM or length >= WIDE_FROM or count >= COUNT_MAX
    short = min(count, COUNT_MAX)
    end = END.pack(b"PK\5\6", 0, 0, short, short, WIDE if wide else length, WIDE if wide else offset, 0)
    return end64 + locator + end if wide else end
