"""The bytes of a file that torch.load reads: any nesting of dicts, lists, tuples, numbers, text and tensors.

The description is written here, in a handful of fixed opcodes of pickle's protocol 2, so that nothing is pickled and no
class but torch's own is named: `torch.load(path, weights_only=True)` admits all of it. The container is a zip that
compresses nothing. Tensors are passed on from where they lie; the same memory under two names is stored once.
"""

import ctypes
import math
import struct
from collections.abc import Iterator
from typing import Any

import torch

from everstep.capture.tensors import DTYPES, on_host
from everstep.errors import Unsupported
from everstep.layout.boxes import strides
from everstep.store.zipped import zipped
from everstep.types import Bytes

STORAGES = {
    "F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage",
    "I64": "LongStorage", "I32": "IntStorage", "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage",
    "BOOL": "BoolStorage", "C64": "ComplexFloatStorage", "C128": "ComplexDoubleStorage",
}  # fmt: skip
DEPTH_MAX = 64


def pieces(tree: Any, where: str) -> Iterator[Bytes]:
    """The file, piece by piece; errors name the place in the tree."""
    described = _Description()
    table = b"\x80\x02" + described.value(tree, where, 0) + b"."
    members: list[tuple[str, Bytes]] = [("data.pkl", table), ("byteorder", b"little")]
    members += [(f"data/{at}", memory(tensor)) for at, tensor in enumerate(described.tensors)]
    return zipped((f"archive/{name}", held) for name, held in (*members, ("version", b"3\n")))


def check(tree: Any, where: str) -> None:
    """Unsupported when something in the tree has no place in such a file. Nothing is written, no tensor is read."""
    _Description().value(tree, where, 0)


def memory(tensor: torch.Tensor) -> memoryview:
    """A host tensor's own bytes, not a copy; they keep the tensor alive."""
    count = tensor.numel() * tensor.element_size()
    if not count:
        return memoryview(b"")
    held = (ctypes.c_char * count).from_address(tensor.data_ptr())
    held.tensor = tensor  # type: ignore[attr-defined]
    return memoryview(held).cast("B")


class _Description:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._known: dict[tuple[int, int, torch.dtype], int] = {}

    def value(self, value: Any, path: str, depth: int) -> bytes:
        if depth > DEPTH_MAX:
            raise Unsupported(f"{path}: nested deeper than {DEPTH_MAX} levels.")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        kind = type(value)
        if kind in SCALARS:
            written: bytes = SCALARS[kind](value)
            return written
        if kind is torch.Size:
            return _name("torch", "Size") + b"(" + self._items(value, path, depth) + b"t\x85R"
        if kind is tuple:
            return b"(" + self._items(value, path, depth) + b"t"
        if kind is list:
            return b"](" + self._items(value, path, depth) + b"e"
        if isinstance(value, dict):
            inner = b"".join(
                self.value(key, f"{path}/{key}", depth + 1) + self.value(item, f"{path}/{key}", depth + 1)
                for key, item in value.items()
            )
            return b"}(" + inner + b"u"
        raise Unsupported(f"{path}: a {kind.__module__}.{kind.__qualname__} cannot be written to a file of torch.save.")

    def _items(self, values: Any, path: str, depth: int) -> bytes:
        return b"".join(self.value(item, f"{path}/{at}", depth + 1) for at, item in enumerate(values))

    def _tensor(self, given: torch.Tensor, path: str) -> bytes:
        tensor = on_host(given)
        if tensor.dtype not in DTYPES:
            raise Unsupported(f"{path}: a tensor of {tensor.dtype} cannot be written.")
        dtype, count = DTYPES[tensor.dtype], tensor.numel()
        legacy = dtype in STORAGES
        storage = _name("torch", STORAGES[dtype]) if legacy else _name("torch.storage", "UntypedStorage")
        held = count if legacy else count * tensor.element_size()
        number = _text(str(self._number(tensor)))
        pointer = b"(" + _text("storage") + storage + number + _text("cpu") + _int(held) + b"tQ"
        call = _name("torch._utils", "_rebuild_tensor_v2" if legacy else "_rebuild_tensor_v3") + b"(" + pointer
        steps = [max(step, 1) for step in strides(tuple(max(n, 1) for n in tensor.shape))]
        call += _int(0) + _ints(tensor.shape) + _ints(steps) + b"\x89" + _name("collections", "OrderedDict") + b")R"
        return call + (b"" if legacy else _name("torch", str(tensor.dtype).removeprefix("torch."))) + b"tR"

    def _number(self, tensor: torch.Tensor) -> int:
        """Which storage it is: tensors over the same memory share one, as they did."""
        key = (tensor.data_ptr(), math.prod(tensor.shape) * tensor.element_size(), tensor.dtype)
        if not key[1] or key not in self._known:
            self._known[key] = len(self.tensors)
            self.tensors.append(tensor)  # alive as long as this is, so that no other can lie where it lies
        return self._known[key]


def _int(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(raw) > 255:
        raise Unsupported(f"a whole number of {value.bit_length()} bits cannot be written.")
    return b"\x8a" + bytes([len(raw)]) + raw


def _ints(values: Any) -> bytes:
    return b"(" + b"".join(_int(int(value)) for value in values) + b"t"


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


SCALARS: dict[type, Any] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"\x88" if value else b"\x89",
    int: _int,
    float: lambda value: b"G" + struct.pack(">d", value),
    str: _text,
}
