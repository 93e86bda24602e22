"""A whole state: every tensor by name, and what else a base says."""

import functools
import platform
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from everstep import __version__
from everstep.capture.context import Context, encode
from everstep.capture.mover import offsets
from everstep.capture.rng import cuda_in_use
from everstep.capture.roster import Roster
from everstep.capture.tensors import describe
from everstep.codec import tree
from everstep.codec.body import aligned
from everstep.native import square_root
from everstep.store import base
from everstep.store.state import Description, Placed
from everstep.types import Bytes, Tensor, printed


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole state as it is now: its tensors, not copied yet, and all the rest, encoded."""

    tensors: list[torch.Tensor]
    described: list[Tensor]
    places: list[int]
    nbytes: int
    content: base.Content
    small: list[tuple[Tensor, bytes]]
    brief: int
    """How many of the tensors, the last ones, change before the optimizer's next step."""

    def pieces(self, versions: dict[str, int]) -> list[list[Bytes]]:
        """What the entry of this state says: table, description, small tensors."""
        table = [Placed(tensor, place) for tensor, place in zip(self.described, self.places, strict=True)]
        said = Description(self.content, tuple(tensor for tensor, _ in self.small), versions)
        return [[msgspec.json.encode(table)], [msgspec.json.encode(said)], aligned(self.small)]


def take(roster: Roster, context: Context) -> Picture:
    """The whole state. Nothing large is copied: the caller does that, to where it has room."""
    tensors: dict[str, torch.Tensor] = {f"model/{name}": parameter for name, parameter in roster.parameters.items()}
    optimizers = tuple(_optimizer(key, roster, tensors) for key in roster.optimizers)
    items = context.everything()
    small = [blob for item in items.values() for blob in item.blobs] + [blob for _, more in optimizers for blob in more]
    brief = {told.name: tensor for item in items.values() for told, tensor in item.far}
    tensors |= brief
    described = [describe(name, tensor) for name, tensor in tensors.items()]
    places, nbytes = offsets(described)
    content = base.Content(
        tuple(entry for entry, _ in optimizers), dict(roster.aliases), roster.derived(),
        {name: item.tree for name, item in items.items()}, "", "", versions(),
    )  # fmt: skip
    return Picture(list(tensors.values()), described, places, nbytes, content, small, len(brief))


@functools.cache
def versions() -> dict[str, str]:
    """What the arithmetic may depend on. `sqrt` is equal on machines whose torch.sqrt is (MKL chooses per CPU)."""
    return {
        "everstep": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "sqrt": printed(square_root.fingerprint(torch.float32)),
        "cuda": torch.cuda.get_device_name() if cuda_in_use() else "",
    }


def optimizer_tensors(roster: Roster) -> dict[str, torch.Tensor]:
    """The optimizers' state tensors by the names a base gives them."""
    tensors: dict[str, torch.Tensor] = {}
    for key in roster.optimizers:
        _optimizer(key, roster, tensors)
    return tensors


def _optimizer(
    key: str, roster: Roster, tensors: dict[str, torch.Tensor]
) -> tuple[base.OptimizerEntry, tuple[tuple[Tensor, bytes], ...]]:
    """What a base says of one optimizer. Its state's tensors are added to `tensors`."""
    optimizer, names = roster.optimizers[key], roster.name_of()

    def put(name: str, item: Any) -> bool:
        if isinstance(item, torch.Tensor):
            tensors[name] = item
            return True
        return False

    groups: list[base.Group] = []
    blobs: list[tuple[Tensor, bytes]] = []
    for at, group in enumerate(optimizer.param_groups):
        hyper = encode(f"hyper/{key}/{at}", {name: value for name, value in group.items() if name != "params"})
        groups.append(base.Group(tuple(names[id(parameter)] for parameter in group["params"]), hyper.tree))
        blobs += hyper.blobs
    state: dict[str, Any] = {}
    for parameter, held in optimizer.state.items():
        name = names[id(parameter)] if isinstance(parameter, torch.Tensor) else f"#{parameter}"
        state[name] = tree.encode(dict(held) if isinstance(held, dict) else held, f"optimizer/{key}/{name}", put)
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    return base.OptimizerEntry(key, kind, tuple(groups), state), tuple(blobs)
