"""An optimizer's state dict, by parameter name: torch's own form, and the form flattened by parameter.

Positions mean nothing to another program: every group lists the names of its parameters. Where a file has numbers only,
the numbers stay and a note says so.
"""

from dataclasses import dataclass, field

from everstep.foreign.found import Plain
from everstep.foreign.plain import Tree, keyed, without_tensors

STATE, GROUPS = "state", "param_groups"
Node = dict[str | int, Tree]


@dataclass(slots=True)
class Optimizer:
    """`values` are per-parameter states by (state key, parameter name)."""

    values: dict[tuple[str, str], Tree] = field(default_factory=dict)
    groups: list[Plain] = field(default_factory=list)
    rest: Node = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_optimizer(node: Node) -> bool:
    """Whether a dict has the two parts of an optimizer's state, whole or flattened."""
    return all(
        any(key == part or (isinstance(key, str) and key.startswith(f"{part}.")) for key in node)
        for part in (STATE, GROUPS)
    )


def optimizer(node: Node) -> Optimizer:
    """Its state by parameter name."""
    found = Optimizer()
    groups = _listed(node.get(GROUPS))
    names = _names(groups)
    flat: dict[str, dict[str, Plain]] = {}
    for key, value in node.items():
        if key == STATE and isinstance(value, dict):
            for parameter, states in value.items():
                _add_states(found, names.get(parameter, str(parameter)), states)
        elif isinstance(key, str) and key.startswith(f"{STATE}."):
            parameter, _, kind = key.removeprefix(f"{STATE}.").rpartition(".")
            found.values[kind, parameter] = value
        elif isinstance(key, str) and key.startswith(f"{GROUPS}.") and without_tensors(value):
            parameter, _, kind = key.removeprefix(f"{GROUPS}.").rpartition(".")
            flat.setdefault(parameter, {})[kind] = keyed(value)
        elif key != GROUPS:
            found.rest[key] = value
    found.groups = [_by_name(group, names) for group in groups] or _regrouped(flat)  # some writers keep both forms
    for at, group in enumerate(groups):
        found.rest |= tensors(group, at)
    if flat and not groups:
        found.notes.append("parameter groups are not stored as such: parameters of equal hyper-parameters form one.")
    if any(isinstance(key, int) and key not in names for key in _states(node)):
        found.notes.append(
            "the optimizer's parameters have numbers here, no names: their order is the training program's."
        )
    return found


def hyper(group: Tree) -> dict[str, Plain]:
    """A group's plain values, without its members."""
    if not isinstance(group, dict):
        return {}
    members = ("params", "param_names")
    return {str(key): keyed(value) for key, value in group.items() if key not in members and without_tensors(value)}


def tensors(group: Tree, at: int) -> Node:
    """Hyper-parameters that are tensors (a learning rate on the device), by a name for each."""
    if not isinstance(group, dict):
        return {}
    return {f"{GROUPS}.{at}.{key}": value for key, value in group.items() if not without_tensors(value)}


def _listed(groups: Tree) -> list[Node]:
    """Groups as a list; a tree grown from paths has them by number."""
    values = list(groups.values()) if isinstance(groups, dict) else groups if isinstance(groups, list) else []
    return [group for group in values if isinstance(group, dict)]


def _states(node: Node) -> Node:
    states = node.get(STATE)
    return states if isinstance(states, dict) else {}


def _names(groups: list[Node]) -> dict[str | int, str]:
    """The name of every numbered parameter, where the file has names."""
    found: dict[str | int, str] = {}
    for group in groups:
        numbers, names = group.get("params"), group.get("param_names")
        if isinstance(numbers, list) and isinstance(names, list) and len(numbers) == len(names):
            found |= {
                n: name for n, name in zip(numbers, names, strict=True) if isinstance(n, int) and isinstance(name, str)
            }
    return found


def _add_states(found: Optimizer, parameter: str, states: Tree) -> None:
    if isinstance(states, dict):
        found.values |= {(str(kind), parameter): value for kind, value in states.items()}
    else:
        found.values["state", parameter] = states


def _by_name(group: Node, names: dict[str | int, str]) -> Plain:
    members = group.get("params")
    params: list[Plain] = [
        names.get(key, str(key)) for key in (members if isinstance(members, list) else []) if isinstance(key, int | str)
    ]
    return {"params": params, **hyper(group)}


def _regrouped(flat: dict[str, dict[str, Plain]]) -> list[Plain]:
    """Groups again from hyper-parameters that were stored for every parameter."""
    found: list[tuple[dict[str, Plain], list[Plain]]] = []
    for parameter, values in flat.items():
        members = next((members for other, members in found if other == values), None)
        if members is None:
            members = []
            found.append((values, members))
        members.append(parameter)
    return [{"params": members, **values} for values, members in found]
