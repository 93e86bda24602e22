"""What was written is read back by the readers of `foreign`, as a stranger would, and compared with the state."""

from collections.abc import Callable, Mapping

import torch

from everstep.capture.tensors import DTYPES
from everstep.errors import Damaged
from everstep.foreign import recognise
from everstep.foreign.arrive import stream
from everstep.foreign.arrive.model import grouped
from everstep.foreign.depart.state import State
from everstep.foreign.depart.trees import memory
from everstep.foreign.found import Checkpoint, Plain, Stored, check, verify

Change = Callable[[str, torch.Tensor], torch.Tensor]


def prove(path: str, wanted: Mapping[str, torch.Tensor], change: Change, state: State | None) -> None:
    """Damaged names the first tensor or hyper-parameter that does not read back bit for bit.

    `change` says what the format makes of a tensor; `state` is given where the format has hyper-parameters.
    """
    checkpoint = recognise.read(path)
    check(checkpoint)
    verify(checkpoint)
    held = grouped(checkpoint)
    for name, tensor in wanted.items():
        stored = held.get(checkpoint.aliases.get(name, name))
        if stored is None or not _same(stored, change(name, tensor)):
            raise Damaged(f"{path}: {name!r} does not read back as it was written. It is not kept; try again.")
    known = {name for name in (*held, *checkpoint.aliases) if name.partition("/")[0] != "other"}
    if strangers := sorted(known - set(wanted)):
        raise Damaged(f"{path}: {strangers[0]!r} reads back, and was never written. It is not kept.")
    if state is not None and len(state.optimizers) == 1:
        _hyper(checkpoint, state, path)


def _same(stored: Stored, tensor: torch.Tensor) -> bool:
    if (stored.dtype, stored.shape) != (DTYPES.get(tensor.dtype), tuple(tensor.shape)):
        return False
    held, at = memory(tensor), 0
    for block in stream.blocks(stored):
        if block != held[at : at + len(block)]:
            return False
        at += len(block)
    return at == len(held)


def _hyper(checkpoint: Checkpoint, state: State, path: str) -> None:
    (one,) = state.optimizers.values()
    said = checkpoint.objects.get("optimizer/param_groups")
    groups = said if isinstance(said, list) else []
    if len(groups) != len(one.groups):
        raise Damaged(f"{path}: {len(groups)} param groups read back, {len(one.groups)} were written.")
    for at, (group, given) in enumerate(zip(groups, one.groups, strict=True)):
        wanted = {"params": list(given.parameters), **given.hyper}
        found = group if isinstance(group, dict) else {}
        for key, value in wanted.items():
            if key != "param_names" and not _has_tensors(value) and found.get(key) != _listed(value):
                raise Damaged(f"{path}: {key!r} of param group {at} does not read back as it was written.")


def _has_tensors(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_tensors(item) for item in value)
    return isinstance(value, torch.Tensor)


def _listed(value: object) -> Plain:
    """As a reader gives it: tuples are lists."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return value  # type: ignore[return-value]
