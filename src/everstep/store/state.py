"""What the entry of a state in shared memory says: a table of its tensors, and all the rest of the state."""

from collections.abc import Sequence

import msgspec

from everstep.errors import Damaged
from everstep.store import base
from everstep.types import Bytes, Tensor, padded


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A tensor and where in the area its bytes begin."""

    tensor: Tensor
    place: int


class Description(msgspec.Struct, frozen=True):
    """What the entry of a state says besides its table: the rest of the state, and the small tensors it names.

    `versions`: of parameters that are of an older step than the entry says, that step. `owned`: the parameters that go
    to the disk from here; None for all.
    """

    content: base.Content
    small: tuple[Tensor, ...]
    versions: dict[str, int]
    owned: tuple[str, ...] | None = None


_table = msgspec.json.Decoder(tuple[Placed, ...])
_description = msgspec.json.Decoder(Description)


def parse(
    pieces: Sequence[Bytes], nbytes: int
) -> tuple[tuple[Placed, ...], Description, list[tuple[Tensor, memoryview]]]:
    """Table, description and small tensors of a state, from the pieces of its entry; every place is checked."""
    try:
        table, said = _table.decode(pieces[0]), _description.decode(pieces[1])
    except msgspec.MsgspecError as bad:
        raise Damaged(f"a state in memory cannot be read ({bad}).") from bad
    for placed in table:
        fault = placed.tensor.fault()
        if fault or not 0 <= placed.place <= nbytes - placed.tensor.nbytes:
            raise Damaged(f"a state in memory: {fault or f'{placed.tensor.name!r} lies outside its area'}.")
    small, at, blobs = [], 0, memoryview(pieces[2]) if len(pieces) > 2 else memoryview(b"")
    for tensor in said.small:
        if tensor.fault() or at + tensor.nbytes > len(blobs):
            raise Damaged(f"a state in memory: {tensor.name!r} does not fit its entry.")
        small.append((tensor, blobs[at : at + tensor.nbytes]))
        at += padded(tensor.nbytes)
    return table, said, small
