"""A whole state, copied at one step, that writes itself as a base in the background."""

import ctypes
import functools
import platform
from typing import Any

import torch

from everstep import __version__, native
from everstep.capture.context import Context, encode
from everstep.capture.rng import cuda_in_use
from everstep.capture.roster import Roster
from everstep.capture.slots import Slot, Slots, copy_in, offsets
from everstep.capture.tensors import describe
from everstep.codec import tree
from everstep.native import square_root
from everstep.store import base
from everstep.store.disk import Disk
from everstep.store.manifest import BaseEntry, Book
from everstep.types import DTYPE_BYTES, Bytes, Pair, Tensor, combine, printed


class Snapshot:
    """The copy. `write` may be called again after it failed; `release` when the base is durable."""

    def __init__(
        self,
        step: int,
        slot: Slot,
        places: list[tuple[Tensor, int]],
        small: list[tuple[Tensor, bytes]],
        content: base.Content,
    ) -> None:
        self.step = step
        self.nbytes = sum(tensor.nbytes for tensor, _ in places)
        self._slot = slot
        self._places = places
        self._small = small
        self._content = content

    def write(self, disk: Disk, book: Book) -> BaseEntry:
        """Digest what was copied and write it; the files are durable when this returns."""
        parts: list[tuple[Tensor, Bytes]] = [
            (tensor, self._slot.memory[place : place + tensor.nbytes]) for tensor, place in self._places
        ]
        found = native.digest(
            [self._slot.address + place for _, place in self._places],
            [tensor.nbytes // DTYPE_BYTES[tensor.dtype] for tensor, _ in self._places],
            [DTYPE_BYTES[tensor.dtype] for tensor, _ in self._places],
            [0] * len(self._places),
            1,
        )
        named: list[tuple[Tensor, Bytes, Pair]] = [
            (t, data, pair) for (t, data), pair in zip(parts, found, strict=True)
        ]
        named += [(t, data, _digest_bytes(t, data)) for t, data in self._small]
        content = _with_digests(self._content, {t.name: pair for t, _, pair in named})
        manifest = book.manifest
        return base.write(
            disk, manifest.run, manifest.writer, self.step, manifest.epoch,
            [(t, data, printed(pair)) for t, data, pair in named], content,
        )  # fmt: skip

    def release(self) -> None:
        self._slot.release()


def take(step: int, roster: Roster, context: Context, slots: Slots) -> Snapshot:
    """Copy the whole state as it is now."""
    tensors: dict[str, torch.Tensor] = {f"model/{name}": parameter for name, parameter in roster.parameters.items()}
    optimizers = tuple(_optimizer(key, roster, tensors) for key in roster.optimizers)
    items = context.everything()
    small = [blob for item in items.values() for blob in item.blobs] + [blob for _, more in optimizers for blob in more]
    described = [describe(name, tensor) for name, tensor in tensors.items()]
    places, nbytes = offsets(described)
    slot = slots.take(nbytes)
    copy_in(slot, described, places, list(tensors.values()))
    content = base.Content(
        tuple(entry for entry, _ in optimizers), dict(roster.aliases), roster.derived(),
        {name: item.tree for name, item in items.items()}, "", "", versions(),
    )  # fmt: skip
    return Snapshot(step, slot, list(zip(described, places, strict=True)), small, content)


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


def state_digest(digests: dict[str, Pair]) -> str:
    """One digest of parameters and optimizer state; buffers and the rest travel in every record as they are."""
    return combine((name, pair) for name, pair in digests.items() if name.startswith(("model/", "optimizer/")))


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


def _with_digests(content: base.Content, digests: dict[str, Pair]) -> base.Content:
    parameters = combine((name, pair) for name, pair in digests.items() if name.startswith("model/"))
    return base.Content(
        content.optimizers,
        content.aliases,
        content.derived,
        content.context,
        parameters,
        state_digest(digests),
        content.versions,
    )


def _digest_bytes(tensor: Tensor, data: bytes) -> Pair:
    held = bytearray(data) or bytearray(1)
    where = ctypes.addressof(ctypes.c_char.from_buffer(held))
    width = DTYPE_BYTES[tensor.dtype]
    return native.digest([where], [len(data) // width], [width], [0], 1)[0]
