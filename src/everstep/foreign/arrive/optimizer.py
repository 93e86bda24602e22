"""An optimizer's part of a checkpoint, by the names of the program's parameters and in the words of torch's class."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from everstep.errors import Misuse, Unsupported
from everstep.foreign.arrive import kinds, stream
from everstep.foreign.arrive.kinds import KINDS
from everstep.foreign.arrive.model import Model
from everstep.foreign.arrive.wishes import Wishes
from everstep.foreign.found import Plain, Stored

State = Stored | Plain | bytes
"""A tensor of the checkpoint, a plain value, or the four bytes of a step counter that was no float32 tensor."""
GROUPS = "param_groups"
STEP = "step"
SHARED = "common_step"
SCALER = "loss_scaler"
"""Kept beside an optimizer by DeepSpeed; it is of no parameter."""
ADAM = frozenset({STEP, "exp_avg", "exp_avg_sq"})
NEEDED: Mapping[str, frozenset[str]] = {
    "Adam": ADAM, "AdamW": ADAM, "RAdam": ADAM, "NAdam": ADAM | {"mu_product"},
    "Adamax": frozenset({STEP, "exp_avg", "exp_inf"}), "Adagrad": frozenset({STEP, "sum"}),
    "RMSprop": frozenset({STEP, "square_avg"}), "Adadelta": frozenset({STEP, "square_avg", "acc_delta"}),
    "Rprop": frozenset({STEP, "prev", "step_size"}), "ASGD": frozenset({STEP, "eta", "mu", "ax"}),
    "Adafactor": frozenset({STEP}), "Muon": frozenset({"momentum_buffer"}),
}  # fmt: skip
"""What torch's class reads of a state that is not empty; with less it fails, or goes on from something else."""
SCALARS = frozenset({STEP, "eta", "mu", "mu_product"})
FACTORED = frozenset({"row_var", "col_var", "variance"})
NUMBERS = {"F64": "<d", "F32": "<f", "F16": "<e", "I64": "<q", "I32": "<i", "I16": "<h", "I8": "<b", "U8": "<B"}


@dataclass(frozen=True, slots=True)
class Group:
    """A param group: who is in it, and its hyper-parameters, tensors among them."""

    parameters: tuple[str, ...]
    hyper: dict[str, object]


@dataclass(frozen=True, slots=True)
class Optimizer:
    kind: str
    groups: tuple[Group, ...]
    state: dict[str, dict[str, State]]
    told: bool
    """Whether the checkpoint itself has param groups."""


@dataclass(frozen=True, slots=True)
class Raw:
    """What a checkpoint says of one optimizer, under its own names."""

    states: Mapping[str, Mapping[str, State]]
    """By parameter, then by state."""
    groups: Sequence[Mapping[str, Plain]]
    tensors: Mapping[tuple[int, str], Stored]
    """Hyper-parameters that are tensors, by group and name."""


def optimizer(raw: Raw, model: Model, new: Mapping[str, str], wishes: Wishes) -> Optimizer:
    """The whole of it, or an error that says what is missing and how to go on without."""
    held = {name for states in raw.states.values() for name in states}
    kind = wishes.optimizer or kinds.inferred(raw.groups, held)
    if kind is None:
        raise Unsupported(
            f"the checkpoint has optimizer state ({', '.join(sorted(held)[:6])}) and does not say whose: Adam and "
            "AdamW look alike. Say it with --optimizer AdamW (or another of torch's), or leave it behind with "
            "--optimizer none. Nothing was written."
        )
    names = _names(raw, model, new, wishes)
    state = {names(number): dict(states) for number, states in raw.states.items() if states}
    if any(_members(group) for group in raw.groups):
        members = [tuple(names(member) for member in _members(group)) for group in raw.groups]
    else:
        members = _told(raw, [name for name in model.parameters if name in state], wishes)
    hyper = [kinds.values(group, kind) for group in raw.groups] or [{}]
    groups = [Group(listed, values) for listed, values in zip(members, hyper, strict=True)]
    for (at, name), stored in raw.tensors.items():
        groups[at].hyper[name] = stored
    _refuse_strangers(groups, state, model)
    _give_steps(groups, state)
    for name, states in state.items():
        if STEP in states:
            states[STEP] = _float32(name, states[STEP])
        _check(kind, name, states, model.parameters[name])
    return Optimizer(kind, tuple(groups), state, told=bool(raw.groups))


def _told(raw: Raw, stepped: list[str], wishes: Wishes) -> list[tuple[str, ...]]:
    """The members of groups that a checkpoint keeps without them, as Megatron does."""
    if wishes.order and len(wishes.order) != max(1, len(raw.groups)):
        raise Misuse(
            f"--order: has {len(wishes.order)} groups of names (a blank line divides them), the checkpoint has "
            f"{len(raw.groups)} param groups."
        )
    if wishes.order or len(raw.groups) < 2:
        return list(wishes.order) or [tuple(stepped)]
    raise Unsupported(
        f"the checkpoint has {len(raw.groups)} param groups and does not say which parameters are in which. Write the "
        "names into a file, one a line, a blank line between groups, and give it with --order; or leave the optimizer "
        "behind with --optimizer none."
    )


def _names(raw: Raw, model: Model, new: Mapping[str, str], wishes: Wishes) -> "Names":
    members = [member for group in raw.groups for member in _members(group)] or list(raw.states)
    if not members or not all(member.isdecimal() and member not in new for member in members):
        if wishes.order and any(_members(group) for group in raw.groups):
            raise Misuse("--order: the checkpoint's groups have names already. Leave the option out.")
        return Names({}, new, model)
    order = [name for group in wishes.order for name in group] or list(model.parameters)
    if not wishes.order and len(raw.groups) > 1:
        raise Unsupported(
            f"the optimizer's parameters have numbers in this checkpoint, no names, and stand in {len(raw.groups)} "
            "groups: which is which only the program knows. Write their names into a file, one a line, in the order of "
            "its param_groups, and give it with --order; or leave the optimizer behind with --optimizer none."
        )
    if len(order) != len(members):
        raise Unsupported(
            f"the optimizer has {len(members)} numbered parameters, {len(order)} names are known: some tensors of the "
            "model are buffers (--buffers), or the optimizer has a part of the parameters only: give their names "
            "with --order, one a line; or leave the optimizer behind with --optimizer none."
        )
    return Names(dict(zip(members, order, strict=True)), new, model)


@dataclass(frozen=True, slots=True)
class Names:
    """From what the checkpoint calls an optimizer's parameter to what the program does."""

    numbers: Mapping[str, str]
    new: Mapping[str, str]
    model: Model

    def __call__(self, said: str) -> str:
        name = self.numbers.get(said) or self.new.get(said, said)
        return self.model.aliases.get(name, name)


def _members(group: Mapping[str, Plain]) -> list[str]:
    members = group.get("params")
    return [str(member) for member in members] if isinstance(members, list) else []


def _refuse_strangers(groups: Sequence[Group], state: Mapping[str, object], model: Model) -> None:
    listed = [name for group in groups for name in group.parameters]
    for name in (*listed, *state):
        if name in model.buffers:  # whatever its name: what an optimizer steps is a parameter
            model.parameters[name] = model.buffers.pop(name)
        if name not in model.parameters:
            raise Unsupported(f"the optimizer steps {name!r}, which the checkpoint's model does not have.")
    if len(set(listed)) != len(listed):
        twice = next(name for name in listed if listed.count(name) > 1)
        raise Unsupported(f"the optimizer has {twice!r} in two places. Nothing was written.")
    if absent := [name for name in state if name not in listed]:
        raise Unsupported(f"the optimizer has state of {absent[0]!r}, which is in none of its groups.")


def _give_steps(groups: Sequence[Group], state: dict[str, dict[str, State]]) -> None:
    """Some systems count steps once for a group; torch's classes for every parameter."""
    for group in groups:
        step = group.hyper.get(STEP)
        if isinstance(step, int | float) and not isinstance(step, bool):
            del group.hyper[STEP]
            for name in group.parameters:
                if state.get(name):
                    state[name].setdefault(STEP, step)


def _float32(name: str, value: State) -> State:
    """A step counter as torch keeps it. A number would be counted up in a copy and never change."""
    if isinstance(value, Stored):
        if value.dtype == "F32" and not value.shape:
            return value
        if math.prod(value.shape) != 1 or value.dtype not in NUMBERS:
            raise Unsupported(f"the step of {name!r} is a tensor of {value.dtype} {list(value.shape)}, not one number.")
        (value,) = struct.unpack(NUMBERS[value.dtype], stream.content(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unsupported(f"the step of {name!r} is no number.")
    return struct.pack("<f", value)


def _check(kind: str, name: str, states: Mapping[str, State], parameter: Stored) -> None:
    """Fused kernels trust the sizes of a state, and no class of torch's begins again where a part of it is missing."""
    short = next(short for short, dotted in KINDS.items() if dotted == kind)
    if lacking := sorted(NEEDED.get(short, frozenset()) - set(states)):
        raise Unsupported(
            f"{lacking[0]!r} of {name!r} is not in the checkpoint; {short} cannot go on from a part of its state. "
            "Leave the optimizer behind with --optimizer none, or name the right one."
        )
    for key, value in states.items():
        if not isinstance(value, Stored) or key in FACTORED:
            continue
        wanted = () if key in SCALARS else parameter.shape
        if value.shape != wanted:
            raise Unsupported(
                f"{key!r} of {name!r} has shape {list(value.shape)}, {list(wanted)} is expected: names and numbers "
                "of the optimizer's parameters are mixed up. Give their order with --order. Nothing was written."
            )


def raws(tensors: Mapping[str, Stored], objects: Mapping[str, Plain]) -> Iterator[tuple[str, Raw]]:
    """Every optimizer of a checkpoint, by what the reader calls it."""
    prefixes = {name.partition("/")[0] for name in (*tensors, *objects) if "/" in name}
    for prefix in sorted(name for name in prefixes if name.partition(".")[0] == "optimizer"):
        states: dict[str, dict[str, State]] = {}
        held: dict[str, Stored | Plain] = {**objects, **tensors}
        for name, value in held.items():
            parts = name.split("/", 2)
            if parts[0] == prefix and len(parts) == 3 and parts[1] != SCALER:
                states.setdefault(parts[2], {})[parts[1]] = value
        groups = objects.get(f"{prefix}/{GROUPS}")
        listed = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
        _share(states)
        listed = listed or _deeper(objects.get(prefix))
        yield prefix, Raw(states, listed, dict(_hyper_tensors(tensors, f"other/{prefix}.{GROUPS}.", len(listed))))


def _share(states: dict[str, dict[str, State]]) -> None:
    """Megatron keeps one step for all parameters, in a place of its own among them."""
    shared = states.pop(SHARED, {}).get("state")
    for held in states.values() if shared is not None else ():
        held.setdefault(STEP, shared)


def _deeper(value: Plain) -> list[dict[str, Plain]]:
    """Param groups of an optimizer whose state is kept elsewhere: Megatron's distributed one."""
    while isinstance(value, dict) and GROUPS not in value:
        value = value.get("optimizer")
    groups = value[GROUPS] if isinstance(value, dict) else None
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _hyper_tensors(tensors: Mapping[str, Stored], prefix: str, count: int) -> Iterator[tuple[tuple[int, str], Stored]]:
    for name, stored in tensors.items():
        at, _, key = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and at.isdecimal() and int(at) < count:
            yield (int(at), key), stored
