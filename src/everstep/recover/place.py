"""Puts restored values into a live model, optimizer and `state=`, keeping every object where it is."""

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

import torch

from everstep.capture.roster import Roster, kind_of
from everstep.capture.shards import like, local
from everstep.codec import tree
from everstep.errors import Damaged, Mismatch
from everstep.recover.ferry import Ferry
from everstep.store.base import Index, OptimizerEntry

ELEMENTWISE = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum"}
"""State that torch's fused optimizers walk beside the parameter."""

Said = list[tuple[list[str], dict[str, Any]]]
"""Of each param group the names in it, and its hyper-parameters."""


def place_base(index: Index, tensors: Mapping[str, torch.Tensor], roster: Roster, ferry: Ferry) -> None:
    """Parameters, optimizer state and hyper-parameters as the base holds them; what only one side has stays."""
    with torch.no_grad():
        for name, parameter in roster.parameters.items():
            if _same_shape(held := tensors.get(f"model/{name}"), parameter):
                ferry.bring(local(parameter), held)
    for entry in index.content.optimizers:
        optimizer = roster.optimizers.get(entry.key)
        if optimizer is None or kind_of(optimizer) != entry.kind:
            continue
        place_groups(_by_name(_said(entry, tensors), roster, entry.key), optimizer)
        optimizer.state.clear()
        _place_unowned(index, entry, tensors, optimizer)
        for name, held in entry.state.items():
            if name in roster.parameters and _same_shape(tensors.get(f"model/{name}"), roster.parameters[name]):
                parameter, decoded = roster.parameters[name], tree.decode(held, tensors.__getitem__)
                check(entry.kind, name, decoded, parameter)
                far = {key for key in decoded if f"optimizer/{entry.key}/{name}/{key}" in index.content.far}
                optimizer.state[parameter] = {
                    key: _beside(value, parameter, ferry, far=key in far) for key, value in decoded.items()
                }


def _place_unowned(
    index: Index, entry: OptimizerEntry, tensors: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """What an optimizer keeps for no parameter, on the device of its parameters; scalars where they were."""
    device = next((local(held).device for group in optimizer.param_groups for held in group["params"]), None)

    def brought(name: str) -> torch.Tensor:
        near = tensors[name].dim() == 0 and name not in index.content.far
        return tensors[name].clone() if near else tensors[name].to(device, copy=True)

    for text, held in entry.unowned.items():
        cast("dict[Any, Any]", optimizer.state)[text] = tree.decode(held, brought)


def place_hyper(index: Index, tensors: Mapping[str, torch.Tensor], roster: Roster) -> None:
    """Hyper-parameters alone, as the base holds them."""
    for entry in index.content.optimizers:
        if (optimizer := roster.optimizers.get(entry.key)) is not None:
            place_groups(_by_name(_said(entry, tensors), roster, entry.key), optimizer)


def copy_common(source: Roster, target: Roster, ferry: Ferry) -> None:
    """What both hold, under the same name and in the same shape, from one state to another."""
    same = {
        name: (source.parameters[name], parameter)
        for name, parameter in target.parameters.items()
        if name in source.parameters and _same_shape(local(source.parameters[name]), parameter)
    }
    with torch.no_grad():
        for theirs, ours in same.values():
            ferry.bring(local(ours), local(theirs))
    for key, optimizer in source.optimizers.items():
        if (mine := target.optimizers.get(key)) is None or kind_of(mine) != kind_of(optimizer):
            continue
        names = dict(source.groups())[key]
        said = [(own, _hyper(group)) for own, group in zip(names, optimizer.param_groups, strict=True)]
        place_groups(_by_name(said, target, key), mine)
        for theirs, ours in same.values():
            if theirs in optimizer.state:
                held = optimizer.state[theirs].items()
                mine.state[ours] = {name: _beside(value, ours, ferry) for name, value in held}
        cast("dict[Any, Any]", mine.state).update(unowned(optimizer))


def unowned(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What it keeps for no parameter, by the text under which it does."""
    state = cast("dict[Any, Any]", optimizer.state)
    return {text: held for text, held in state.items() if isinstance(text, str)}


def _said(entry: OptimizerEntry, tensors: Mapping[str, torch.Tensor]) -> Said:
    return [(list(group.parameters), tree.decode(group.hyper, tensors.__getitem__)) for group in entry.groups]


def _by_name(said: Said, roster: Roster, key: str) -> list[dict[str, Any]]:
    """Hyper-parameters for each group of the program, as the group had them in which its parameters were."""
    ours = dict(roster.groups())[key]
    if ours == [names for names, _ in said]:
        return [hyper for _, hyper in said]
    home = {name: hyper for names, hyper in said for name in names}
    found = []
    for at, names in enumerate(ours):
        told = [home[name] for name in names if name in home]
        if any(one is not told[0] and str(one) != str(told[0]) for one in told[1:]):
            raise Mismatch(f"optimizer {key!r}, group {at}: its parameters were in groups that differ in the run.")
        found.append(told[0] if told else {})
    return found


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _same_shape(held: torch.Tensor | None, parameter: torch.Tensor) -> TypeGuard[torch.Tensor]:
    return held is not None and held.shape == local(parameter).shape


def check(kind: str, name: str, state: Any, parameter: torch.Tensor) -> None:
    """Fused kernels, torch's and ours, trust the sizes of an optimizer's state: a file is not believed."""
    if not isinstance(state, dict):
        raise Damaged(f"the optimizer's state of {name!r} is not one.")
    for key in ELEMENTWISE & state.keys() if kind.startswith("torch.optim.") else ():
        if isinstance(held := state[key], torch.Tensor) and held.shape != local(parameter).shape:
            raise Damaged(f"optimizer state {key!r} of {name!r} has shape {tuple(held.shape)}, not its parameter's.")


def place_groups(groups: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Hyper-parameters as they were at a step. A tensor that someone else may hold is written into, not replaced."""
    for group, values in zip(optimizer.param_groups, groups, strict=False):
        for name, value in values.items():
            current = group.get(name)
            if isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor) and current.shape == value.shape:
                current.copy_(value)
            else:
                group[name] = value.clone() if isinstance(value, torch.Tensor) else value


def _beside(value: Any, parameter: torch.Tensor, ferry: Ferry, *, far: bool = False) -> Any:
    """A piece of optimizer state where the optimizer would have made it: same device, and same strides as its
    parameter, because fused kernels walk both in memory order."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape == local(parameter).shape and value.dim():
        part = torch.empty_like(local(parameter), dtype=value.dtype, requires_grad=False)
        return like(parameter, ferry.bring(part, value))
    if value.dim() == 0 and not far:
        return value.clone()  # step counters live on the host unless the optimizer is capturable or fused on a GPU
    return value.to(parameter.device, copy=True)
