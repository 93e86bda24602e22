"""What this process holds of a tensor that several hold together: DTensors of FSDP2, tensor and expert parallelism.

Everything that reads or writes bytes works on the local part; its description says which box of the whole it is.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch

from everstep.errors import Unsupported
from everstep.types import Box, Local, boxed, whole

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


ORDINARY = {torch.Tensor, torch.nn.Parameter}
"""Asked thousands of times per step: these are known at once."""


def is_sharded(tensor: torch.Tensor) -> "TypeGuard[DTensor]":
    """Whether it is a DTensor; torch's distributed package is not imported to find out."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that lies in this process; an ordinary tensor is all of it."""
    if type(tensor) in ORDINARY:
        return tensor
    return tensor._local_tensor if is_sharded(tensor) else tensor  # noqa: SLF001 to_local() would be seen by autograd


def box_of(name: str, tensor: torch.Tensor) -> Box:
    """Which box of the whole tensor the local part is."""
    if not is_sharded(tensor):
        return whole(tensor.shape)
    if any(placement.is_partial() for placement in tensor.placements):
        raise Unsupported(f"{name}: a DTensor with partial sums ({tensor.placements}) is not a value yet. Reduce it.")
    low, high = [0] * tensor.dim(), list(tensor.shape)
    for dim, at, count in _cuts(tensor):
        share = -(-(high[dim] - low[dim]) // count)  # as torch.chunk does: the last ones may get less, or nothing
        low[dim] = min(low[dim] + at * share, high[dim])
        high[dim] = min(low[dim] + share, high[dim])
    box, held = Box(tuple(low), tuple(high)), tuple(local(tensor).shape)
    if box.shape != held:
        raise Unsupported(f"{name}: its local part has shape {held} where its placements say {box.shape}.")
    return box


def _cuts(tensor: "DTensor") -> list[tuple[int, int, int]]:
    """Which dimension is cut, and which of how many parts is here, one cut after the other.

    FSDP over tensor parallelism cuts a dimension that is cut already; the placement that says so stands first.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise Unsupported(f"this rank is not on the mesh of a DTensor: {tensor.device_mesh}.")
    found: list[tuple[int, int, int]] = []
    after: list[tuple[int, int, int]] = []
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            cut = (placement.dim, coordinate[axis], tensor.device_mesh.size(axis))  # type: ignore[attr-defined]
            (after if hasattr(placement, "split_factor") else found).append(cut)
    return [*found, *reversed(after)]


def held_of(name: str, tensor: torch.Tensor, layout: Mapping[str, Local]) -> Local:
    """What the local part is of which logical tensor: by the spec, by the DTensor's placements, or all of it."""
    return layout.get(name) or boxed(name, tuple(tensor.shape), box_of(name, tensor))


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor whose local part this is, laid out as the parameter is."""
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip
