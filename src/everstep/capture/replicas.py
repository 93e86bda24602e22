"""Which ranks hold what this one holds, by contract: DistributedDataParallel's group, or the mesh of DTensors."""

import torch
import xxhash
from torch import nn

from everstep.capture.digests import digest
from everstep.capture.roster import Model, Roster, kind_of
from everstep.capture.shards import box_of, is_sharded, local
from everstep.types import combine


def replicas(model: Model, roster: Roster) -> tuple[int, ...]:
    """Ranks of the default group, this one among them; none where nothing promises that others hold the same."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized() or not roster.parameters:
        return ()
    found = [_of_mesh(parameter) for parameter in roster.parameters.values() if is_sharded(parameter)]
    if len(found) < len(roster.parameters):
        found.append(_of_parallel(model, [p for p in roster.parameters.values() if not is_sharded(p)]))
    return tuple(sorted(set.intersection(*found)))


def held(roster: Roster) -> str:
    """What this rank holds, every value of it, in a few words: equal for ranks that hold the same."""
    tensors = {name: local(parameter).detach() for name, parameter in roster.parameters.items()}
    said = [(name, str(tensor.dtype), str(box_of(name, roster.parameters[name]))) for name, tensor in tensors.items()]
    said += [(key, kind_of(optimizer), "") for key, optimizer in roster.optimizers.items()]
    values = combine(zip(tensors, digest(list(tensors.values())), strict=True))
    return xxhash.xxh3_128_hexdigest(f"{said} {sorted(roster.layout.items())} {roster.groups()} {values}".encode())


def _of_mesh(parameter: torch.Tensor) -> set[int]:
    """The ranks that have the same shard of a DTensor."""
    assert is_sharded(parameter)
    mesh, here = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    if here is None:
        return set()
    same = tuple(
        slice(None) if placement.is_replicate() else slice(at, at + 1)
        for at, placement in zip(here, parameter.placements, strict=True)
    )
    return {int(rank) for rank in mesh.mesh[same].flatten()}


def _of_parallel(model: Model, plain: list[torch.Tensor]) -> set[int]:
    """The ranks of the DistributedDataParallel that all of these parameters are in."""
    roots = [model] if isinstance(model, nn.Module) else list(model.values())
    for module in (inner for root in roots for inner in root.modules()):
        if isinstance(module, nn.parallel.DistributedDataParallel):
            ignored = set(module.parameters_to_ignore)
            known = {id(p) for name, p in module.module.named_parameters(remove_duplicate=False) if name not in ignored}
            if all(id(parameter) in known for parameter in plain):
                return set(torch.distributed.get_process_group_ranks(module.process_group))
    return set()
