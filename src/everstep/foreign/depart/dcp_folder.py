"""`--format dcp`: a folder of torch.distributed.checkpoint, written by torch's own writer in this one process.

The optimizer is there as `get_state_dict` gives it, and its hyper-parameters also by parameter, as it gives them with
`flatten_optimizer_state_dict`: dcp.load asks for one or the other, by name, and finds both.
"""

import warnings
from typing import Any

from everstep.errors import StoreFailed
from everstep.foreign.depart import torch_file
from everstep.foreign.depart.state import Optimizer, State
from everstep.store.disk import LocalDisk


def write(disk: LocalDisk, state: State) -> list[str]:
    """Write the folder; what it does not carry."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tree: dict[str, Any] = {"model": torch_file.model(state), "step": state.step}
    if len(state.optimizers) == 1:
        (one,) = state.optimizers.values()
        tree["optimizer"] = _by_name(one)
    elif state.optimizers:
        tree["optimizers"] = {key: _by_name(one) for key, one in state.optimizers.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is")  # one process is what is meant
            save(tree, storage_writer=FileSystemWriter(disk.root), no_dist=True)
    except CheckpointException as failed:  # which is no Exception, and would pass by everybody
        why = "; ".join(str(one) for one, _ in failed.failures.values())
        raise StoreFailed(f"{disk.root}: torch's writer failed ({why[:500]}). Nothing was left there.") from failed
    return [
        "random number generators and state= are not in the folder.",
        ".metadata has no checksum, and torch's reader checks none: 'everstep verify' checks those of the data files.",
    ]


def _by_name(one: Optimizer) -> dict[str, Any]:
    groups: list[dict[str, Any]] = []
    flat: dict[str, Any] = {}
    for group in one.groups:
        hyper = {key: value for key, value in group.hyper.items() if key not in ("params", "param_names")}
        groups.append({**hyper, "params": list(group.parameters)})
        for name in group.parameters:
            if not name.isdecimal():  # a parameter named 0 would be taken for a group
                flat |= {f"param_groups.{name}.{key}": value for key, value in hyper.items()}
    return {"state": {name: dict(held) for name, held in one.state.items()}, "param_groups": groups, **flat}
