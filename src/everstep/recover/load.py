"""A base's tensors, each proved by its digest before anyone sees it."""

from collections.abc import Callable

import torch

from everstep.capture.tensors import TORCH_DTYPES
from everstep.recover.fetch import fetch
from everstep.recover.pages import in_huge_pages
from everstep.recover.pump import Pump
from everstep.recover.scatter import Scatter
from everstep.recover.stretches import Seat
from everstep.store import base
from everstep.store.disk import Files
from everstep.store.manifest import BaseEntry
from everstep.types import Tensor

Seats = Callable[[base.Index], dict[str, Seat]]
"""Where the tensors of a base are read to, by name; those without a place are not read."""


def rooms(index: base.Index) -> dict[str, Seat]:
    """Memory of its own for every tensor."""
    return {stored.tensor.name: room(stored.tensor) for stored in index.tensors}


def load(
    disk: Files, rank: int, entry: BaseEntry, seats: Seats = rooms, index: base.Index | None = None,
    pump: Pump | None = None, *, fetched: bool = False,
) -> tuple[base.Index, dict[str, torch.Tensor]]:  # fmt: skip
    """The index, if it is not known yet, and the tensors, all of them by default; Damaged when any byte is not what was
    written. For one that is scattered there is only a stand-in. `fetched`: they are where they go already."""
    index = base.load(disk, rank, entry) if index is None else index
    found = seats(index)
    if not fetched:
        fetch(disk, rank, entry, index, found, pump)
    return index, {name: seat.stand_in if isinstance(seat, Scatter) else seat for name, seat in found.items()}


def room(described: Tensor) -> torch.Tensor:
    """Memory for a tensor of a base; how much was checked against the length of the file."""
    return in_huge_pages(torch.empty(described.box.shape, dtype=TORCH_DTYPES[described.dtype]))
