"""Puts restored values into a live model, optimizer and `state=`, keeping every object where it is."""

from collections.abc import Mapping
from typing import Any, cast

import torch

from everstep.capture.roster import Roster
from everstep.codec import tree
from everstep.store.base import Index


def place_base(index: Index, tensors: Mapping[str, torch.Tensor], roster: Roster) -> None:
    """Parameters, optimizer state and hyper-parameters as the base holds them; what only one side has stays."""
    with torch.no_grad():
        for name, parameter in roster.parameters.items():
            if (held := tensors.get(f"model/{name}")) is not None and held.shape == parameter.shape:
                parameter.copy_(held)
    for entry in index.content.optimizers:
        if (optimizer := roster.optimizers.get(entry.key)) is None:
            continue
        place_groups([tree.decode(group.hyper, tensors.__getitem__) for group in entry.groups], optimizer)
        optimizer.state.clear()
        for name, held in entry.state.items():
            decoded = tree.decode(held, tensors.__getitem__)
            if name.startswith("#"):
                cast("dict[Any, Any]", optimizer.state)[name[1:]] = decoded  # some optimizers keep state under a text
            elif name in roster.parameters:
                parameter = roster.parameters[name]
                optimizer.state[parameter] = {key: _beside(value, parameter) for key, value in decoded.items()}


def place_groups(groups: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Hyper-parameters as they were at a step. A tensor that someone else may hold is written into, not replaced."""
    for group, values in zip(optimizer.param_groups, groups, strict=False):
        for name, value in values.items():
            current = group.get(name)
            if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor) and current.shape == value.shape:
                current.copy_(value)
            else:
                group[name] = value.clone() if isinstance(value, torch.Tensor) else value


def _beside(value: Any, parameter: torch.Tensor) -> Any:
    """A piece of optimizer state where the optimizer would have made it: same device, and same strides as its
    parameter, because fused kernels walk both in memory order."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape == parameter.shape and value.dim():
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
    if value.dim() == 0:
        return value.clone()  # step counters live on the host unless the optimizer is capturable or fused on a GPU
    return value.to(parameter.device, copy=True)
