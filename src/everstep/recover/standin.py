"""A stand-in for the training program: parameters by name, optimizers from torch's own table."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from everstep.capture.buckets import bare
from everstep.capture.roster import Roster, kind_of
from everstep.codec import tree
from everstep.errors import CannotReplay
from everstep.store.base import Index, OptimizerEntry

NAMES = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
)  # fmt: skip
KNOWN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for name in NAMES
    if (kind := getattr(torch.optim, name, None)) is not None
}
"""The optimizers that need no program of the user's. A file names one of these or is refused: never an import."""

Optimizers = Mapping[str, torch.optim.Optimizer]
"""Of the program, by key."""


def assemble(
    index: Index, tensors: dict[str, torch.Tensor], *, replay: bool, device: torch.device | None = None,
    own: Optimizers = MappingProxyType({}),
) -> Roster:  # fmt: skip
    """Parameters and optimizers as the base describes them; without replay no optimizer is needed, so any will do.

    `device` is where they are to be: a device's own optimizer rounds as it did when it trained. `own` are those of the
    program, if there is one: what is not torch's may be one of them.
    """
    parameters = {
        name.removeprefix("model/"): torch.nn.Parameter(
            tensor.to(device or "cpu", copy=True), tensor.is_floating_point() or tensor.is_complex()
        )
        for name, tensor in tensors.items()
        if name.startswith("model/")
    }
    entries = index.content.optimizers if replay else ()
    optimizers = {entry.key: optimizer_of(entry, parameters, tensors, index.step, own) for entry in entries}
    return Roster(dict(parameters), dict(index.content.aliases), {}, optimizers)


def optimizer_of(
    entry: OptimizerEntry, parameters: dict[str, torch.nn.Parameter], tensors: dict[str, torch.Tensor], step: int,
    own: Optimizers,
) -> torch.optim.Optimizer:  # fmt: skip
    """The optimizer that trained, over these parameters."""
    mine = own.get(entry.key)
    alike = mine is not None and kind_of(mine) == entry.kind
    if entry.kind not in KNOWN and not alike:
        raise CannotReplay(
            f"optimizer {entry.key!r} is a {entry.kind}, which is not torch's own: only the training program can "
            f"replay it, with resume(). Without it, base {step} and the other bases that 'everstep ls' lists can be "
            "restored."
        )
    groups = [
        {"params": [parameters[name] for name in group.parameters], **tree.decode(group.hyper, tensors.__getitem__)}
        for group in entry.groups
    ]
    return twin(mine, groups) if mine is not None and entry.kind not in KNOWN else KNOWN[entry.kind](groups)


def twin(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer like the program's own, set up as it is, over other parameters. Nobody listens to its steps.

    Should it keep more of its own than its class knows, what it does is not what the other did, and digests tell.
    """
    optimizer = bare(optimizer)
    found = object.__new__(type(optimizer))
    told = {name: value for name, value in vars(optimizer).items() if name != "step"}  # a scheduler wraps it
    listeners = {name: OrderedDict[int, Any]() for name in told if name.startswith("_optimizer_")}
    vars(found).update({**told, **listeners, "state": defaultdict(dict), "param_groups": []})
    for group in groups:
        found.add_param_group(group)
    return found
