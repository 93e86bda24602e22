"""The header of one safetensors file, with every check that the format asks for: nothing left out, nothing twice."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everstep.errors import Damaged, Unsupported
from everstep.foreign.files import File
from everstep.foreign.found import Place, Stored
from everstep.foreign.known import size
from everstep.frugal import refuse_bomb
from everstep.types import DTYPE_BYTES, whole

HEADER_BYTES_MAX = 100_000_000
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class Header:
    """A file's tensors, and the text that was stored with them."""

    path: str
    tensors: Mapping[str, Stored]
    texts: Mapping[str, str]


def header(path: str) -> Header:
    """What the file holds. Only the header is read."""
    with File(path) as file:
        if file.size < 8:
            raise _damaged(path, "is shorter than a header")
        length = int.from_bytes(file.read(0, 8), "little")
        if not 2 <= length <= min(HEADER_BYTES_MAX, file.size - 8):
            raise _damaged(path, f"claims a header of {length} bytes")
        content, buffer_bytes = file.read(8, length), file.size - 8 - length
    refuse_bomb(content, name=path)
    try:
        said = json.loads(content, object_pairs_hook=_once)
        texts = said.pop(METADATA, {})
        found = {name: _entry(path, name, entry, 8 + length) for name, entry in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise _damaged(path, f"has a header that cannot be read ({str(wrong)[:200]})") from wrong
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise _damaged(path, "has texts that are none")
    _no_holes(path, found, 8 + length, buffer_bytes)
    return Header(path, found, texts)


def _entry(path: str, name: str, entry: Any, start: int) -> Stored:
    dtype, (begin, end) = entry["dtype"], entry["data_offsets"]
    if dtype not in DTYPE_BYTES or dtype == "C128":  # which the format does not have
        raise Unsupported(f"{path}: {name!r} has the element type {str(dtype)[:20]!r}, which is not known here.")
    shape = size(entry["shape"])
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError(f"the range of {name!r} is none")
    if math.prod(shape) * DTYPE_BYTES[dtype] != end - begin:
        raise ValueError(f"{end - begin} bytes cannot hold {list(shape)} of {dtype} for {name!r}")
    return Stored(dtype, shape, ((whole(shape), Place(path, start + begin, end - begin)),))


def _no_holes(path: str, found: Mapping[str, Stored], start: int, nbytes: int) -> None:
    """Every byte of the buffer belongs to exactly one tensor."""
    at = start
    for place in sorted((stored.parts[0][1] for stored in found.values()), key=lambda one: (one.offset, one.nbytes)):
        if place.offset != at:
            raise _damaged(path, f"has a hole or an overlap at byte {min(at, place.offset)}")
        at += place.nbytes
    if at != start + nbytes:
        raise _damaged(path, f"should be {at} bytes long and is {start + nbytes}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _damaged(path: str, what: str) -> Damaged:
    return Damaged(f"{path}: {what}. It was cut short or damaged, or is no safetensors file; copy it again.")
