"""What this process holds of a tensor that several hold together: DTensors of FSDP2, tensor and expert parallelism.

Everything that reads or writes bytes works on the local part; its description says which box of the whole it is.
"""

from typing import TYPE_CHECKING, TypeGuard

import torch

from everstep.errors import Unsupported
from everstep.types import Box, whole

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: torch.Tensor) -> "TypeGuard[DTensor]":
    """Whether it is a DTensor; torch's distributed package is not imported to find out."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part that lies in this process; an ordinary tensor is all of it."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # noqa: SLF001 to_local() would be seen by autograd


def box_of(name: str, tensor: torch.Tensor) -> Box:
    """Which box of the whole tensor the local part is."""
    if not is_sharded(tensor):
        return whole(tensor.shape)
    if any(placement.is_partial() for placement in tensor.placements):
        raise Unsupported(f"{name}: a DTensor with partial sums ({tensor.placements}) is not a value yet. Reduce it.")
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, low = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    held = tuple(local(tensor).shape)
    if tuple(shape) != held:
        raise Unsupported(f"{name}: its local part has shape {held} where its placements say {tuple(shape)}.")
    return Box(tuple(low), tuple(start + extent for start, extent in zip(low, shape, strict=True)))


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor whose local part this is, laid out as the parameter is."""
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip
