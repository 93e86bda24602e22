"""A state at a step, put together for other systems: what belongs to the model, to which optimizer, to nobody."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from everstep.codec import tree
from everstep.errors import NotARun, StepNotHeld, Unsupported
from everstep.foreign.depart.state import Group, Optimizer, State
from everstep.log.inventory import survey
from everstep.recover import choose, others
from everstep.recover.cohort import inventories, stand
from everstep.recover.restore import restore
from everstep.store import base
from everstep.store import cohort as cohorts
from everstep.store.base import Index
from everstep.store.disk import Disk, existing
from everstep.url import split_url


def held(url: str, step: int | None) -> State:
    """The whole state, proved; what several writers hold is put together."""
    restored = restore(url, step)
    indexes = _indexes(url, restored.step)
    derived = {name for index in indexes for name in index.content.derived}
    parameters = _under("model/", restored.tensors)
    buffers = {name: held for name, held in _under("buffer/", restored.tensors).items() if name not in derived}
    aliases = {alias: name for index in indexes for alias, name in index.content.aliases.items()}
    kinds = {entry.key: entry.kind for index in indexes for entry in index.content.optimizers}
    at_base = all(index.step == restored.step for index in indexes)
    optimizers = {
        key: Optimizer(
            kinds[key],
            [Group(tuple(group["params"]), {k: v for k, v in group.items() if k != "params"}) for group in groups],
            _states(key, restored.tensors, parameters, indexes if at_base else ()),
        )
        for key, groups in restored.context["optimizers"].items()
    }
    extra, state = _under("extra/", restored.context), _under("state/", restored.context)
    return State(restored.step, parameters, buffers, aliases, extra, optimizers, state)


def _under(prefix: str, things: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): thing for name, thing in things.items() if name.startswith(prefix)}


def _states(
    key: str, tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, object], indexes: Sequence[Index]
) -> dict[str, dict[str, Any]]:
    """An optimizer's state by parameter: its tensors, and at a base also what is none."""
    found: dict[str, dict[str, Any]] = {}
    for index in indexes:
        for entry in index.content.optimizers:
            if entry.key == key and entry.unowned:
                texts = ", ".join(map(repr, entry.unowned))
                raise Unsupported(
                    f"optimizer {key!r} keeps state under {texts}, for no parameter: it cannot be exported."
                )
            for name, said in entry.state.items() if entry.key == key else ():
                if isinstance(said, dict) and name in parameters:
                    plain = {k: v for k, v in said.items() if not (isinstance(v, dict) and v.get("$") == "tensor")}
                    found.setdefault(name, {}).update(tree.decode(plain, tensors.__getitem__))
    for name, tensor in _under(f"optimizer/{key}/", tensors).items():
        parameter, _, state = name.rpartition("/")
        if parameter not in parameters:
            raise Unsupported(
                f"the optimizer's state {name!r} is not one tensor of a parameter; it cannot be exported."
            )
        found.setdefault(parameter, {})[state.replace("~1", "/").replace("~0", "~")] = tensor
    return found


def _indexes(url: str, step: int) -> list[Index]:
    """What the bases say that the step was restored from, one for each writer."""
    path, epoch = split_url(url)
    try:
        disk = existing(path)
    except NotARun:  # a file
        return _of_others(path)
    try:
        if epoch is None and cohorts.load_all(disk):
            return _together(disk, path, step)
        return [base.load(disk, 0, choose.routes(survey(disk, path, epoch=epoch), step)[0].base)]
    except NotARun:
        return _of_others(path)
    finally:
        disk.release()


def _of_others(path: str) -> list[Index]:
    theirs = others.way(path, proved=True)
    if theirs is None:
        raise NotARun(f"{path}: is neither a run nor a checkpoint any more.")
    return [theirs.index]


def _together(disk: Disk, path: str, step: int) -> list[Index]:
    found = stand(disk, path, step)
    held = inventories(disk, path, found.epochs) if found is not None else None
    if held is None:
        raise StepNotHeld(f"{path}: step {step} is no longer there: it was pruned while it was read. Try again.")
    return [base.load(disk, rank, choose.routes(own, step)[0].base) for rank, own in enumerate(held)]
