"""How much memory a program's steps and states need. Before the first step the optimizer's state is a guess."""

from everstep.capture import snapshot
from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.shards import local
from everstep.ring.size import Sizes, sizes
from everstep.settings import Settings

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

    If it `spreads`, states that were to be taken whole may turn out too large for that; if it `turns`, states may come
    to be taken where gradients were to be.
    """
    parameters = sum(local(parameter).nbytes for parameter in roster.parameters.values())
    trained = trained_bytes(roster)
    held = sum(local(tensor).nbytes for tensor in snapshot.optimizer_tensors(roster).values())
    small = context.nbytes + HEAD_BYTES + TENSOR_HEAD_BYTES * len(roster.parameters)
    state = parameters + (held or 2 * trained) + context.nbytes + 1024 * len(roster.parameters)
    limit, areas = settings.buffer_bytes_max, AREAS["state" if turns else settings.source]
    free_bytes = max(0, free_bytes - _to_come(roster, fresh=not held))
    if settings.source == "state":
        more = RECORDS_SPREAD * (2 * small + trained) if spreads else 0
        return sizes(2 * small, state, limit, free_bytes, areas=areas, ring_bytes=more)
    return sizes(
        2 * small + trained // (2 if settings.gradients == "bf16" else 1), state, limit, free_bytes, areas=areas
    )


def _to_come(roster: Roster, *, fresh: bool) -> int:
    """What training itself is about to take of the host's memory: gradients, and at first the optimizer's state."""
    near = [held for held in roster.parameters.values() if held.requires_grad and local(held).device.type == "cpu"]
    gradients = sum(local(held).nbytes for held in near if not held.is_leaf or held.grad is None)
    return gradients + (2 * sum(local(held).nbytes for held in near) if fresh else 0)
