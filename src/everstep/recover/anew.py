"""What cannot be laid out anew: optimizer state that is not cut as its parameter is, or is no parameter's and not the
same everywhere, and param groups put together of groups that differ. Found in the writers' indexes, before anything is
changed.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from everstep.capture.roster import Roster
from everstep.capture.shards import held_of
from everstep.recover import unowned
from everstep.store.base import Index


def differences(indexes: Sequence[Index], roster: Roster, optimizers: Container[str]) -> list[str]:
    """Of these optimizers, which the program has as the run has them."""
    unlike = dict.fromkeys(unowned.differences(indexes, optimizers))
    return [*_uncut(indexes, roster, optimizers), *unlike, *_torn(indexes, roster, optimizers)]


def owners(index: Index) -> dict[str, tuple[str, str, str]]:
    """Of each tensor of optimizer state: which optimizer's, which parameter's, and what it is called there."""
    return {
        held["v"]: (entry.key, name, state)
        for entry in index.content.optimizers for name, states in entry.state.items()
        if isinstance(states, dict) and "$" not in states
        for state, held in states.items() if isinstance(held, dict) and held.get("$") == "tensor"
    }  # fmt: skip


def uncut(key: str, state: str, owner: str, shape: tuple[int, ...]) -> str:
    return (
        f"optimizer {key!r}: {state!r} of {owner!r}, {shape}, is not cut as its parameter is: only the layout that "
        "trained has a place for it"
    )


def _uncut(indexes: Sequence[Index], roster: Roster, optimizers: Container[str]) -> list[str]:
    ours = {held_of(name, parameter, roster.layout) for name, parameter in roster.parameters.items()}
    as_they_were = {held.logical for index in indexes for held in index.held.values() if held in ours}
    moved = {held.logical for held in ours} - as_they_were
    found = set()
    for index in indexes:
        shapes = {stored.tensor.name: stored.tensor.box.shape for stored in index.tensors}
        for name, (key, owner, state) in owners(index).items():
            if key not in optimizers or owner not in index.held or index.held[owner].logical not in moved:
                continue
            shape = shapes[name]
            if shape != shapes[f"model/{owner}"] and any(extent > 1 for extent in shape):
                found.add(uncut(key, state, owner, shape))
    return sorted(found)


def _torn(indexes: Sequence[Index], roster: Roster, optimizers: Container[str]) -> Iterator[str]:
    """Of writers whose bases are of the same step: at another one a schedule had given every group another rate. How
    all of them were at the step that is wanted shows when their logs have been replayed."""
    for key, groups in roster.groups():
        if key not in optimizers:
            continue
        home = {name: at for at, names in enumerate(groups) for name in map(roster.logical, names)}
        told: dict[tuple[int, int], Any] = {}
        torn = {
            home[name]
            for index in indexes for entry in index.content.optimizers if entry.key == key
            for group in entry.groups for name in _logical(index, group.parameters) if name in home
            if told.setdefault((home[name], index.step), hyper := _plain(group.hyper)) != hyper
        }  # fmt: skip
        yield from (torn_apart(key, at) for at in sorted(torn))


def torn_apart(key: str, at: int) -> str:
    return f"optimizer {key!r}, group {at}: its parameters were in groups that differ in the run"


def _logical(index: Index, names: Iterable[str]) -> Iterator[str]:
    return (index.held[name].logical if name in index.held else name for name in names)


def _plain(tree: Any) -> Any:
    """Hyper-parameters without the names of tensors, which say in which group they stood."""
    if isinstance(tree, dict):
        return "tensor" if tree.get("$") == "tensor" else {name: _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
