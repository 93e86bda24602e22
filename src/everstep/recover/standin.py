"""A stand-in for the training program: parameters by name, optimizers from torch's own table."""

from collections.abc import Callable

import torch

from everstep.capture.roster import Roster
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


def assemble(
    index: Index, tensors: dict[str, torch.Tensor], *, replay: bool, device: torch.device | None = None
) -> Roster:
    """Parameters and optimizers as the base describes them; without replay no optimizer is needed, so any will do.

    `device` is where they are to be: a device's own optimizer rounds as it did when it trained.
    """
    parameters = {
        name.removeprefix("model/"): torch.nn.Parameter(
            tensor.to(device or "cpu", copy=True), tensor.is_floating_point() or tensor.is_complex()
        )
        for name, tensor in tensors.items()
        if name.startswith("model/")
    }
    entries = index.content.optimizers if replay else ()
    optimizers = {entry.key: optimizer_of(entry, parameters, tensors, index.step) for entry in entries}
    return Roster(dict(parameters), dict(index.content.aliases), {}, optimizers)


def optimizer_of(
    entry: OptimizerEntry, parameters: dict[str, torch.nn.Parameter], tensors: dict[str, torch.Tensor], step: int
) -> torch.optim.Optimizer:
    """The optimizer that trained, over these parameters."""
    if entry.kind not in KNOWN:
        raise CannotReplay(
            f"optimizer {entry.key!r} is a {entry.kind}, which is not torch's own: only the training program can "
            f"replay it, with resume(). Without it, base {step} and the other bases that 'everstep ls' lists can be "
            "restored."
        )
    groups = [
        {"params": [parameters[name] for name in group.parameters], **tree.decode(group.hyper, tensors.__getitem__)}
        for group in entry.groups
    ]
    return KNOWN[entry.kind](groups)
