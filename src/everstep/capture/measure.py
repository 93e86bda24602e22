"""How much memory a program's steps and states need. Before the first step the optimizer's state is a guess."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from everstep.capture import snapshot
from everstep.capture.buckets import bare
from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.shards import local
from everstep.ring.size import Sizes, needed, sizes
from everstep.settings import Settings
from everstep.types import size

HEAD_BYTES = 64 << 10
TENSOR_HEAD_BYTES = 400
"""What a record says of itself, and of each of its tensors."""
AREAS = {"auto": 3, "gradient": 3, "layer": 3, "state": 4}
"""One holds the newest state, one is filled, one is read by the disk; at every step, one more is on its way."""


RECORDS_SPREAD = 12
"""Records that repair states of up to five steps, should whole ones not fit into a step."""


def trained_bytes(roster: Roster) -> int:
    """How large the gradients are that a step makes."""
    return sum(local(parameter).nbytes for parameter in roster.parameters.values() if parameter.requires_grad)


def measure(
    roster: Roster, context: Context, settings: Settings, free_bytes: int, *, spreads: bool, turns: bool
) -> Sizes:
    """Room for records and states, for this program and these settings. `free_bytes` may be counted on.

    None where that is too little: the kernel ends a process that takes more than there is. If it `spreads`, states that
    were to be taken whole may turn out too large for that; if it `turns`, states may come to be taken where gradients
    were to be.
    """
    parameters = sum(local(parameter).nbytes for parameter in roster.parameters.values())
    trained = trained_bytes(roster)
    held = sum(local(tensor).nbytes for tensor in snapshot.optimizer_tensors(roster).values())
    small = context.nbytes + HEAD_BYTES + TENSOR_HEAD_BYTES * len(roster.parameters)
    state = parameters + (held or moments(roster) * trained) + context.nbytes + 1024 * len(roster.parameters)
    limit, areas = settings.buffer_bytes_max, AREAS["state" if turns else settings.source]
    free_bytes = max(0, free_bytes - _to_come(roster, fresh=not held))
    exact, rounded, alone = 2 * small + trained, 2 * small + trained // 2, 2 * small
    if settings.source == "state":
        more = RECORDS_SPREAD * exact if spreads else 0
        record, found = alone, sizes(alone, state, limit, free_bytes, areas=areas, ring_bytes=more)
    else:
        record = rounded if settings.gradients == "bf16" else exact
        found = sizes(record, state, limit, free_bytes, areas=areas)
    if not found.areas:
        other = {"gradients='bf16'": rounded, "source='state'": alone}
        less = {told: needed(nbytes, state) for told, nbytes in other.items() if nbytes < record}
        return replace(found, refusal=_refusal(found, less, asked=limit is not None))
    return found


def _refusal(found: Sizes, less: Mapping[str, int], *, asked: bool) -> str:
    """`less`: what other settings would need. `asked`: the bound is the caller's own."""
    allowed = "Settings.buffer_bytes_max allows" if asked else "of what is free here it may use"
    ways = [f"Settings({told}) needs {size(nbytes)}" for told, nbytes in less.items()]
    ways.append(f"Settings(buffer_bytes_max={found.least_bytes}) allows so much" + ("" if asked else " all the same"))
    return (
        f"to record its steps this program needs {size(found.least_bytes)} of host memory, for a state of "
        f"{size(found.state_bytes)} on its way to the disk and a few records; {allowed} {size(found.limit_bytes)}. The "
        f"run is as it was. {'; '.join(ways)}."
    )


def _to_come(roster: Roster, *, fresh: bool) -> int:
    """What training itself is about to take of the host's memory: gradients, and at first the optimizer's state."""
    near = [held for held in roster.parameters.values() if held.requires_grad and local(held).device.type == "cpu"]
    gradients = sum(local(held).nbytes for held in near if not held.is_leaf or held.grad is None)
    return gradients + (moments(roster) * sum(local(held).nbytes for held in near) if fresh else 0)


def moments(roster: Roster) -> int:
    """How many tensors like each parameter an optimizer is taken to keep, before it has made them: two, but for SGD."""
    found = [bare(optimizer) for optimizer in roster.optimizers.values()]
    if any(not isinstance(optimizer, torch.optim.SGD) for optimizer in found):
        return 2
    return int(any(group["momentum"] for optimizer in found for group in optimizer.param_groups))
