"""torch's own ZeRO-1: every rank has the whole model, and a ZeroRedundancyOptimizer steps some of its parameters there.

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    run = everstep.open("runs/gpt", model=model, optimizer=everstep.integrations.zero_redundancy.seen(model, optimizer))

Each rank records what it steps; on a resume the others get it as they do after every step.
"""

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from everstep.capture.buckets import Bucket, Buckets
from everstep.capture.roster import Model, named_parameters
from everstep.errors import Unsupported
from everstep.layout import view as views
from everstep.types import Local


def seen(model: Model, optimizer: ZeroRedundancyOptimizer) -> Buckets:
    """The optimizer as one that steps this rank's parameters alone."""
    if optimizer._overlap_with_ddp:  # noqa: SLF001 it says nowhere else
        raise Unsupported("a ZeroRedundancyOptimizer with overlap_with_ddp steps during backward: leave that out.")
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    own = optimizer.optim.param_groups
    here = {id(parameter) for group in own for parameter in group["params"]}
    groups = [[_bucket(parameter, names[id(parameter)]) for parameter in group["params"]] for group in own]
    elsewhere = [
        _bucket(parameter, names[id(parameter)], here=False)
        for group in optimizer.param_groups for parameter in group["params"] if id(parameter) not in here
    ]  # fmt: skip

    def arrived() -> None:
        optimizer._sync_params()  # type: ignore[attr-defined]  # noqa: SLF001 as at the end of its step

    return Buckets(optimizer.optim, groups, fixed=elsewhere, arrived=arrived, said=optimizer.param_groups)


def _bucket(parameter: torch.Tensor, name: str, *, here: bool = True) -> Bucket:
    shape, size = tuple(parameter.shape), parameter.numel()
    pieces = views.full(shape).lower_flat(0, size, 0) if here and size else []
    return Bucket(parameter, {name: Local(name, shape, (size,), tuple(pieces))})
