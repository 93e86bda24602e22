"""How much memory a program's steps and states need. Before the first step the optimizer's state is a guess."""

from everstep.capture import snapshot
from everstep.capture.context import Context
from everstep.capture.roster import Roster
from everstep.capture.shards import local
from everstep.ring.size import Sizes, sizes
from everstep.settings import Settings
from everstep.store.memory import available_bytes

HEAD_BYTES = 64 << 10
TENSOR_HEAD_BYTES = 400
"""What a record says of itself, and of each of its tensors."""
AREAS = {"gradient": 3, "layer": 3, "state": 4}
"""One holds the newest state, one is filled, one is read by the disk; at every step, one more is on its way."""


def measure(roster: Roster, context: Context, settings: Settings, left_bytes: int) -> Sizes:
    """Room for records and states, for this program and these settings. `left_bytes` a trainer before took."""
    parameters = sum(local(parameter).nbytes for parameter in roster.parameters.values())
    trained = sum(local(parameter).nbytes for parameter in roster.parameters.values() if parameter.requires_grad)
    held = sum(local(tensor).nbytes for tensor in snapshot.optimizer_tensors(roster).values())
    small = context.nbytes + HEAD_BYTES + TENSOR_HEAD_BYTES * len(roster.parameters)
    state = parameters + (held or 2 * trained) + context.nbytes + 1024 * len(roster.parameters)
    record = 2 * small + (0 if settings.source == "state" else trained // (2 if settings.gradients == "bf16" else 1))
    free = available_bytes() + left_bytes
    return sizes(record, state, settings.buffer_bytes_max, free, areas=AREAS[settings.source])
