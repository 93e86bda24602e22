"""`--format torch`: `{"model": .., "optimizer": .., "step": ..}`, state dicts that torch itself loads."""

from typing import Any

from everstep.errors import Unsupported
from everstep.foreign.depart import trees
from everstep.foreign.depart.state import Optimizer, State
from everstep.store.disk import Disk, write_new

CODELESS = "random number generators are not in the file."


def write(disk: Disk, name: str, state: State) -> list[str]:
    """Write the file; what it does not carry. One tensor's bytes at a time, from where they lie."""
    tree, notes = whole(state)
    write_new(disk, name, trees.pieces(tree, name))
    return notes


def whole(state: State) -> tuple[dict[str, Any], list[str]]:
    """The tree of the file, and what could not be put into it."""
    notes = [CODELESS]
    tree: dict[str, Any] = {"model": model(state)}
    several = {key: dict(state_dict(one)) for key, one in state.optimizers.items()}
    if len(several) == 1:
        (tree["optimizer"],) = several.values()
    elif several:
        tree["optimizers"] = several
    tree["step"] = state.step
    kept: dict[str, Any] = {}
    for key, value in state.state.items():
        try:
            trees.check(value, f"state[{key!r}]")
        except Unsupported as refused:
            notes.append(f"state {key!r} is not in the file: {refused}")
        else:
            kept[key] = value
    if kept:
        tree["state"] = kept
    return tree, notes


def model(state: State) -> dict[str, Any]:
    """The model's state dict: tied names share their bytes."""
    found: dict[str, Any] = dict(state.model)
    found |= {alias: state.parameters[name] for alias, name in state.aliases.items()}
    return found | {f"{prefix}_extra_state": value for prefix, value in state.extra.items()}


def state_dict(one: Optimizer) -> dict[str, Any]:
    """The optimizer's state dict: numbers in the order of its groups, and the names beside them."""
    numbers: dict[str, int] = {}
    groups = []
    for group in one.groups:
        members = [numbers.setdefault(name, len(numbers)) for name in group.parameters]
        hyper = {key: value for key, value in group.hyper.items() if key not in ("params", "param_names")}
        groups.append({**hyper, "param_names": list(group.parameters), "params": members})
    return {"state": {numbers[name]: dict(held) for name, held in one.state.items()}, "param_groups": groups}
