"""Compares what a base holds with what a training program has. Lists every difference, never the first only."""

from collections.abc import Sequence
from typing import Any

from everstep.capture.context import Context
from everstep.capture.roster import Roster, kind_of
from everstep.capture.shards import held_of
from everstep.capture.tensors import DTYPES
from everstep.layout.versions import shape_of_one
from everstep.store.base import Index
from everstep.types import Tensor


def differences(index: Index, roster: Roster, context: Context) -> list[str]:
    """What the run holds and the program does not, the reverse, and what differs in kind, shape or type."""
    held = {stored.tensor.name: stored.tensor for stored in index.tensors}
    return [
        *_parameters(held, roster),
        *_aliases(index.content.aliases, roster.aliases),
        *_buffers(held, set(index.content.derived), roster),
        *_optimizers(index, roster),
        *_names("state", _items(index, "state/"), set(context.state)),
        *_names("extra state of module", _items(index, "extra/"), set(roster.extra())),
    ]


def shared_differences(
    indexes: Sequence[Index], own: Index, roster: Roster, context: Context, *, alone: bool
) -> list[str]:
    """The same of a state that several writers hold together: what one of them lacks another may have.

    Unless the program is `alone`, what it does not have itself may be with other ranks. Param groups are compared by
    name; `state=` must be what the writer of `own` had.
    """
    ours = {f"context/buffer/{name}" for name in roster.buffers()}
    held = {s.tensor.name: s.tensor for index in indexes for s in index.tensors if alone or s.tensor.name in ours}
    known = {**roster.aliases, **roster.parameters}
    aliases = {a: n for index in indexes for a, n in index.content.aliases.items() if alone or a in known}
    extra = {name for index in indexes for name in _items(index, "extra/") if alone or name in roster.extra()}
    return [
        *_shared_parameters(indexes, roster, alone=alone),
        *_aliases(aliases, roster.aliases),
        *_buffers(held, {name for index in indexes for name in index.content.derived}, roster),
        *_shared_optimizers(indexes, roster, alone=alone),
        *_names("state", _items(own, "state/"), set(context.state)),
        *_names("extra state of module", extra, set(roster.extra())),
    ]


def in_both(indexes: Sequence[Index], roster: Roster) -> tuple[set[str], set[str]]:
    """The parameters, and the optimizers, that the program has as the writers together have them."""
    run, program = _logical(indexes, roster)
    kinds = {entry.key: entry.kind for index in indexes for entry in index.content.optimizers}
    named = {name: roster.logical(name) for name in roster.parameters}
    return (
        {name for name, logical in named.items() if run.get(logical) == program[logical]},
        {key for key, optimizer in roster.optimizers.items() if kinds.get(key) == kind_of(optimizer)},
    )


def _logical(indexes: Sequence[Index], roster: Roster) -> tuple[dict[str, Any], dict[str, Any]]:
    """Shape and type of every logical tensor of which there are parts, in the run and in the program."""
    run: dict[str, tuple[Any, ...]] = {}
    for index in indexes:
        dtypes = {stored.tensor.name: stored.tensor.dtype for stored in index.tensors}
        run |= {held.logical: (shape_of_one(held), dtypes[f"model/{name}"]) for name, held in index.held.items()}
    program: dict[str, tuple[Any, ...]] = {}
    for name, parameter in roster.parameters.items():
        held = held_of(name, parameter, roster.layout)
        program[held.logical] = (shape_of_one(held), DTYPES.get(parameter.dtype))
    return run, program


def _shared_parameters(indexes: Sequence[Index], roster: Roster, *, alone: bool) -> list[str]:
    """Parameters by the names of the logical tensors of which they are parts."""
    run, program = _logical(indexes, roster)
    return [
        *_names("parameter", {name for name in run if alone or name in program}, set(program)),
        *(
            f"parameter {name!r}: {' '.join(map(str, run[name]))} in the run, {' '.join(map(str, told))} in the model"
            for name, told in sorted(program.items()) if name in run and run[name] != told
        ),
    ]  # fmt: skip


def _shared_optimizers(indexes: Sequence[Index], roster: Roster, *, alone: bool) -> list[str]:
    entries = [entry for index in indexes for entry in index.content.optimizers]
    found = _names("optimizer", {entry.key for entry in entries}, set(roster.optimizers))
    for key, groups in roster.groups():
        kind = kind_of(roster.optimizers[key])
        run = [entry for entry in entries if entry.key == key]
        found += sorted(
            {f"optimizer {key!r}: {e.kind} in the run, {kind} in the program" for e in run if e.kind != kind}
        )
        theirs = {
            index.content.layout[name].logical if name in index.content.layout else name
            for index in indexes for entry in index.content.optimizers if entry.key == key
            for group in entry.groups for name in group.parameters
        }  # fmt: skip
        ours = {roster.logical(name) for names in groups for name in names}
        theirs = theirs if alone else theirs & set(map(roster.logical, roster.parameters))
        if run:
            found += _names(f"optimizer {key!r}: parameter", theirs, ours)
    return found


def _parameters(held: dict[str, Tensor], roster: Roster) -> list[str]:
    run = {name.removeprefix("model/"): tensor for name, tensor in held.items() if name.startswith("model/")}
    found = _names("parameter", set(run), set(roster.parameters))
    for name in sorted(set(run) & set(roster.parameters)):
        parameter = roster.parameters[name]
        if run[name].shape != tuple(parameter.shape):
            found.append(
                f"parameter {name!r}: shape {run[name].shape} in the run, {tuple(parameter.shape)} in the model"
            )
        if run[name].dtype != DTYPES.get(parameter.dtype):
            found.append(
                f"parameter {name!r}: {run[name].dtype} in the run, {DTYPES.get(parameter.dtype)} in the model"
            )
    return found


def _aliases(run: dict[str, str], model: dict[str, str]) -> list[str]:
    return [
        f"parameter {name!r}: tied to {run.get(name)!r} in the run, to {model.get(name)!r} in the model"
        for name in sorted(set(run) | set(model)) if run.get(name) != model.get(name)
    ]  # fmt: skip


def _buffers(held: dict[str, Tensor], derived: set[str], roster: Roster) -> list[str]:
    prefix = "context/buffer/"
    run = {name.removeprefix(prefix): tensor for name, tensor in held.items() if name.startswith(prefix)}
    model = roster.buffers()
    loose = derived | set(roster.derived())
    found = _names("buffer", set(run) - loose, set(model) - loose)
    for name in sorted(set(run) & set(model) - loose):
        if (run[name].shape, run[name].dtype) != (tuple(model[name].shape), DTYPES.get(model[name].dtype)):
            found.append(f"buffer {name!r}: {run[name].dtype} {run[name].shape} in the run, another in the model")
    return found


def _optimizers(index: Index, roster: Roster) -> list[str]:
    run = {entry.key: entry for entry in index.content.optimizers}
    found = _names("optimizer", set(run), set(roster.optimizers))
    for key, groups in roster.groups():
        if key not in run:
            continue
        kind = kind_of(roster.optimizers[key])
        if run[key].kind != kind:
            found.append(f"optimizer {key!r}: {run[key].kind} in the run, {kind} in the program")
        ours = [list(group.parameters) for group in run[key].groups]
        if len(ours) != len(groups):
            found.append(f"optimizer {key!r}: {len(ours)} param groups in the run, {len(groups)} in the program")
        for at, (left, right) in enumerate(zip(ours, groups, strict=False)):
            found += _names(f"optimizer {key!r}, group {at}: parameter", set(left), set(right))
            if set(left) == set(right) and left != right:
                found.append(f"optimizer {key!r}, group {at}: the parameters stand in another order")
    return found


def _items(index: Index, prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in index.content.context if name.startswith(prefix)}


def _names(what: str, run: set[str], program: set[str]) -> list[str]:
    return [f"{what} {name!r}: only in the run" for name in sorted(run - program)] + [
        f"{what} {name!r}: only in the program" for name in sorted(program - run)
    ]
