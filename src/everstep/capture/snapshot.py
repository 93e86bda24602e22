"""A whole state: every tensor by name, and what else a base says."""

import functools
import platform
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from everstep import __version__
from everstep.capture.context import Context, encode
from everstep.capture.mover import Parcel, offsets
from everstep.capture.rng import cuda_in_use
from everstep.capture.roster import Roster, kind_of
from everstep.capture.shards import local
from everstep.capture.tensors import describe
from everstep.codec import tree
from everstep.codec.body import aligned
from everstep.errors import Unsupported
from everstep.native import square_root
from everstep.store import base
from everstep.store.state import Description, Placed
from everstep.types import Bytes, Tensor, printed


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole state as it is now: its tensors, not copied yet, and all the rest, encoded."""

    fixed: "Fixed"
    content: base.Content
    small: list[tuple[Tensor, bytes]]
    brief: list[tuple[Tensor, torch.Tensor]]
    """What changes before the optimizer's next step; its place is behind all others."""
    owned: tuple[str, ...] | None = None
    """The parameters that go to the disk from here; None for all."""

    @property
    def nbytes(self) -> int:
        return self.fixed.nbytes + offsets([told for told, _ in self.brief])[1]

    def pieces(self, versions: dict[str, int]) -> list[list[Bytes]]:
        """What the entry of this state says: table, description, small tensors."""
        places = [self.fixed.nbytes + place for place in offsets([told for told, _ in self.brief])[0]]
        more = [Placed(told, place) for (told, _), place in zip(self.brief, places, strict=True)]
        said = Description(self.content, tuple(tensor for tensor, _ in self.small), versions, self.owned)
        table = self.fixed.table if not more else _joined(self.fixed.table, msgspec.json.encode(more))
        return [[table], [msgspec.json.encode(said)], aligned(self.small)]


@dataclass(frozen=True, slots=True)
class Fixed:
    """What of a picture stays as long as no tensor is added, replaced or resized: who they are, and where they go."""

    signature: list[Any]
    tensors: list[torch.Tensor]
    described: list[Tensor]
    places: list[int]
    nbytes: int
    states: list[dict[str, Any]]
    table: bytes
    far: tuple[str, ...]
    parcels: dict[tuple[int, ...], Parcel] = field(default_factory=dict)

    def parcel(self, indices: tuple[int, ...]) -> Parcel:
        """These of the tensors, as they are sent to an area."""
        if indices not in self.parcels:
            self.parcels[indices] = Parcel(
                [self.described[at] for at in indices], [self.places[at] for at in indices],
                [self.tensors[at] for at in indices],
            )  # fmt: skip
        return self.parcels[indices]


class Camera:
    """Takes pictures of one program again and again; what stays is looked at anew only when something is replaced."""

    def __init__(self) -> None:
        self._fixed: Fixed | None = None

    def fixed(self, roster: Roster) -> Fixed:
        """The tensors alone."""
        signature = _signature(roster)
        if self._fixed is None or signature is None or self._fixed.signature != signature:
            self._fixed = _fixed(roster, signature)
        return self._fixed

    def take(self, roster: Roster, context: Context, owned: frozenset[str] | None) -> Picture:
        """The whole state. Nothing large is copied: the caller does that, to where it has room."""
        fixed = self.fixed(roster)
        items = context.everything()
        hyper = {key: _hyper(key, roster) for key in roster.optimizers}
        optimizers = tuple(
            base.OptimizerEntry(key, kind_of(roster.optimizers[key]), hyper[key][0], state)
            for key, state in zip(roster.optimizers, fixed.states, strict=True)
        )
        small = [blob for item in items.values() for blob in item.blobs]
        small += [blob for _, blobs in hyper.values() for blob in blobs]
        content = base.Content(
            optimizers, dict(roster.aliases), roster.derived(), {name: item.tree for name, item in items.items()}, "",
            "", versions(), fixed.far, dict(roster.layout), place=context.place,
        )  # fmt: skip
        far = [pair for item in items.values() for pair in item.far]
        return Picture(fixed, content, small, far, None if owned is None else tuple(sorted(owned)))


def _signature(roster: Roster) -> list[Any] | None:
    """What tells that something was replaced; None when only encoding everything would tell."""
    found: list[Any] = [
        (id(parameter), parameter.shape, id(local(parameter))) for parameter in roster.parameters.values()
    ]
    for optimizer in roster.optimizers.values():
        for parameter, held in optimizer.state.items():
            if not isinstance(held, dict):
                return None
            for name, value in held.items():
                if isinstance(value, torch.Tensor):
                    found.append((id(parameter), name, id(value), value.shape, id(local(value))))
                elif value is None or isinstance(value, int | float | str):
                    found.append((id(parameter), name, value))
                else:
                    return None
    return found


def _fixed(roster: Roster, signature: list[Any] | None) -> Fixed:
    tensors: dict[str, torch.Tensor] = {f"model/{name}": parameter for name, parameter in roster.parameters.items()}
    states = [_state(key, roster, tensors) for key in roster.optimizers]
    described = [describe(name, tensor) for name, tensor in tensors.items()]
    places, nbytes = offsets(described)
    table = msgspec.json.encode([Placed(told, place) for told, place in zip(described, places, strict=True)])
    far = tuple(name for name, tensor in tensors.items() if tensor.dim() == 0 and tensor.device.type != "cpu")
    held = [local(tensor) for tensor in tensors.values()]
    return Fixed(signature or [], held, described, places, nbytes, states, table, far)


def _joined(one: bytes, two: bytes) -> bytes:
    """Two JSON arrays as one."""
    return one[:-1] + (b"," if len(one) > 2 else b"") + two[1:]


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
        _state(key, roster, tensors)
    return tensors


def _hyper(key: str, roster: Roster) -> tuple[tuple[base.Group, ...], list[tuple[Tensor, bytes]]]:
    """An optimizer's param groups: who is in them, and their hyper-parameters."""
    names = roster.name_of()
    groups: list[base.Group] = []
    blobs: list[tuple[Tensor, bytes]] = []
    for at, group in enumerate(roster.optimizers[key].param_groups):
        hyper = encode(f"hyper/{key}/{at}", {name: value for name, value in group.items() if name != "params"})
        groups.append(base.Group(tuple(names[id(parameter)] for parameter in group["params"]), hyper.tree))
        blobs += hyper.blobs
    return tuple(groups), blobs


def _state(key: str, roster: Roster, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What a base says of an optimizer's state; its tensors are added to `tensors`."""
    names = roster.name_of()

    def put(name: str, item: Any) -> bool:
        if isinstance(item, torch.Tensor):
            tensors[name] = item
            return True
        return False

    state: dict[str, Any] = {}
    for parameter, held in roster.optimizers[key].state.items():
        if not isinstance(parameter, torch.Tensor | str):
            raise Unsupported(
                f"optimizer {key!r} keeps state under {parameter!r}, which is neither a parameter nor a text."
            )
        name = f"#{parameter}" if isinstance(parameter, str) else names[id(parameter)]
        state[name] = tree.encode(dict(held) if isinstance(held, dict) else held, f"optimizer/{key}/{name}", put)
    return state
