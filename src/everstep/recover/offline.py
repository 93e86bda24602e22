"""What one writer holds of a state, without the training program: plain tensors by name."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from everstep.capture.roster import Roster
from everstep.capture.snapshot import optimizer_tensors
from everstep.codec import tree
from everstep.errors import Damaged
from everstep.recover import recover as recovery
from everstep.recover.choose import Route
from everstep.recover.ledger import Item, Ledger
from everstep.recover.standin import assemble
from everstep.recover.ways import DiskWay, Way
from everstep.store.base import Index
from everstep.store.disk import Disk
from everstep.types import Local, Tensor

KINDS: dict[str, Any] = {"model": "parameter", "optimizer": "optimizer", "buffer": "buffer"}


@dataclass(frozen=True, slots=True)
class Restored:
    """The state at a step: `tensors` by name (model/.., optimizer/.., buffer/..), `context` everything else by name."""

    step: int
    tensors: dict[str, torch.Tensor]
    context: dict[str, Any]
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Part:
    """What one writer holds of a state, and which boxes of which tensors that is."""

    restored: Restored
    described: dict[str, Tensor]
    held: dict[str, Local]
    index: Index


def follow(disk: Disk, rank: int, routes: list[Route]) -> Part:
    """What a writer holds at the routes' step, by name; Damaged when what the files say cannot be put together."""
    return follow_ways([DiskWay(disk, rank, route) for route in routes])


def follow_ways(ways: Sequence[Way]) -> Part:
    """The same by any ways to one step."""
    try:
        return _follow(ways)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as bad:
        # No code of the user's runs here, so whatever torch or a lookup refuses was said by a file.
        raise Damaged(f"step {ways[0].step}: its files do not fit together ({type(bad).__name__}: {bad}).") from bad


def _follow(ways: Sequence[Way]) -> Part:
    began = time.perf_counter()
    built: list[tuple[Roster, dict[str, torch.Tensor]]] = []

    def build(index: Index, tensors: dict[str, torch.Tensor]) -> Roster:
        built.append((assemble(index, tensors, replay=index.step != ways[0].step), tensors))
        return built[-1][0]

    found = recovery.recover(ways, build)
    roster, stored = built[-1]
    tensors = {f"model/{name}": parameter.detach() for name, parameter in roster.parameters.items()}
    tensors |= optimizer_tensors(roster) if roster.optimizers else _named(stored, "optimizer/")
    context = {name: value for name, value in found.context.items() if not name.startswith("buffer/")}
    context["optimizers"] = _hyper(found.index, roster, stored)
    tensors |= {name: value for name, value in found.context.items() if name.startswith("buffer/")}
    origin = found.origin + (f" and {found.records} records ({found.replayed})" if found.records else "")
    items = tuple(Item(name, KINDS[name.partition("/")[0]], "restored", origin) for name in tensors)
    ledger = Ledger(
        found.step,
        found.index.step,
        found.records,
        found.replayed,
        time.perf_counter() - began,
        found.replay_seconds,
        items,
        found.notes,
    )
    restored = Restored(found.step, tensors, context, ledger)
    described = {stored.tensor.name: stored.tensor for stored in found.index.tensors}
    return Part(restored, described, found.index.held, found.index)


def _named(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _hyper(index: Index, roster: Roster, stored: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Hyper-parameters per optimizer and group, with the names of the group's parameters."""
    if not roster.optimizers:
        return {
            entry.key: [
                {"params": list(group.parameters), **tree.decode(group.hyper, stored.__getitem__)}
                for group in entry.groups
            ]
            for entry in index.content.optimizers
        }
    names = dict(roster.groups())
    return {
        key: [{**group, "params": names[key][at]} for at, group in enumerate(optimizer.param_groups)]
        for key, optimizer in roster.optimizers.items()
    }
