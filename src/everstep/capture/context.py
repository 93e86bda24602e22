"""Everything a step changes that gradients cannot give back: generators, buffers, schedulers, data position.

Each item is encoded when a step is committed and written only if it differs from what the log said last.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch

from everstep.capture import rng
from everstep.capture.digests import digest
from everstep.capture.roster import Roster
from everstep.capture.tensors import describe, to_bytes
from everstep.codec import tree
from everstep.errors import Unsupported
from everstep.types import Bytes, DataPlace, Tensor


@runtime_checkable
class Stateful(Protocol):
    """What may stand in `state=`: schedulers, scalers, data loaders, averages, anything with these two."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """One item: its tree, and the tensors it names; those in device memory are `far`, not copied yet."""

    tree: Any
    blobs: tuple[tuple[Tensor, bytes], ...]
    far: tuple[tuple[Tensor, torch.Tensor], ...] = ()


class Context:
    """The items of one training program, and what the log already says of them."""

    def __init__(self, roster: Roster, state: Mapping[str, Stateful]) -> None:
        self._roster = roster
        self._state = dict(state)
        self._known: dict[str, Any] = {}
        self._told = False
        self._copies: dict[str, Bytes] = {}
        for key, item in self._state.items():
            if not isinstance(item, Stateful):
                raise Unsupported(
                    f"state[{key!r}]: a {type(item).__name__} has no state_dict() and load_state_dict(). Give an "
                    "object that has both, or keep the value inside one that has."
                )
            if not isinstance(key, str) or not key or "/" in key:
                raise Unsupported(f"state[{key!r}]: a key is a text without '/'.")

    @property
    def state(self) -> dict[str, Stateful]:
        return self._state

    @property
    def place(self) -> DataPlace | None:
        """Which part of the data this rank reads, as the first item says that knows."""
        told = (getattr(item, "place", None) for item in self._state.values())
        return next((place for place in told if isinstance(place, DataPlace)), None)

    def everything(self) -> dict[str, Encoded]:
        """All items, for a base. What the log says next is relative to this."""
        self.forget()
        return self.changed()

    def changed(self) -> dict[str, Encoded]:
        """The items that differ from what was said last."""
        if not self._told:
            self._known.clear()
            self._told = True
        found = self._moved_generators()
        for name, value in self._values():
            encoded = encode(f"context/{name}", value, far=True)
            moved = [_where(tensor) for _, tensor in encoded.far]
            mark = (msgspec.json.encode(encoded.tree), [data for _, data in encoded.blobs], moved)
            if self._known.get(name) != mark:
                self._known[name] = mark
                found[name] = encoded
        found.update(self._changed_buffers())
        return found

    @property
    def nbytes(self) -> int:
        """About how much all items take in a record."""
        buffers = sum(buffer.nbytes for buffer in self._roster.buffers().values())
        return buffers + sum(len(data) for mark in self._known.values() for data in _bytes_of(mark))

    def forget(self) -> None:
        """Say everything again next time: what was taken last did not reach the log."""
        self._told = False

    def copied(self, described: Sequence[Tensor], places: Sequence[int], memory: memoryview) -> None:
        """Where the device's copies are of what was said last."""
        for told, place in zip(described, places, strict=True):
            self._copies[told.name] = memory[place : place + told.nbytes]

    def look(self) -> None:
        """Remember how everything is now, as `changed` does, without a word to the log."""
        for item in self.everything().values():
            self._copies |= {told.name: to_bytes(tensor) for told, tensor in item.far}
        self.forget()

    def pass_over(self) -> None:
        """The same for a step that is not recorded. A device is not waited for: what it holds counts as changed."""
        self.changed()
        self.forget()

    def still(self) -> bool:
        """Whether everything is as it was at the last look. What a device holds is fetched; its copies are complete."""
        known, told, self._told = dict(self._known), self._told, True
        moved = self.changed()
        self._known, self._told = known, told
        if any(not name.startswith("buffer/") for name in moved):
            return False
        far = [pair for item in moved.values() for pair in item.far]
        near = any(item.blobs for item in moved.values())
        return not near and all(self._copies.get(told.name, b"") == to_bytes(tensor) for told, tensor in far)

    def _values(self) -> Iterator[tuple[str, Any]]:
        for name, module in self._roster.extra().items():
            yield f"extra/{name}", module.get_extra_state()
        for key, item in self._state.items():
            yield f"state/{key}", item.state_dict()

    def _moved_generators(self) -> dict[str, Encoded]:
        found: dict[str, Encoded] = {}
        for name, state in rng.take().items():
            if not rng.same(name, self._known.get(f"rng/{name}"), state):
                self._known[f"rng/{name}"] = state
                found[f"rng/{name}"] = encode(f"context/rng/{name}", rng.packed(name, state))
        return found

    def _changed_buffers(self) -> dict[str, Encoded]:
        """Buffers are compared by digest: they may be large, and most never change.

        On a device a digest would have to be waited for, and version counters do not tell: batch norm's kernels write
        running statistics past them. There, what the model keeps in its state_dict is said at every step.
        """
        buffers = self._roster.buffers()
        derived = set(self._roster.derived())
        near = {name: buffer for name, buffer in buffers.items() if buffer.device.type == "cpu"}
        marks: dict[str, Any] = dict(zip(near, digest(list(near.values())), strict=True))
        found: dict[str, Encoded] = {}
        for name, buffer in buffers.items():
            mark = (marks[name] if name in marks else _where(buffer), buffer.dtype, buffer.shape)
            untold = name not in marks and name not in derived
            if untold or self._known.get(f"buffer/{name}") != mark:
                self._known[f"buffer/{name}"] = mark
                found[f"buffer/{name}"] = encode(f"context/buffer/{name}", buffer, far=True)
        return found


def _bytes_of(mark: Any) -> list[bytes]:
    """The bytes that an item's mark holds; generators' and buffers' marks hold none."""
    return [mark[0], *mark[1]] if isinstance(mark, tuple) and isinstance(mark[0], bytes) else []


def _where(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor lies and how often it was written to."""
    return tensor.data_ptr(), tensor._version  # noqa: SLF001


def encode(path: str, value: Any, *, far: bool = False) -> Encoded:
    """A value as a tree and the bytes of its tensors; the tensors are named by their place in it.

    With `far`, tensors in CUDA memory are only named: copying them here would wait for the device.
    """
    blobs: list[tuple[Tensor, bytes]] = []
    away: list[tuple[Tensor, torch.Tensor]] = []

    def put(name: str, item: Any) -> bool:
        if not isinstance(item, torch.Tensor):
            return False
        if far and item.device.type == "cuda":
            away.append((describe(name, item), item.detach()))
        else:
            blobs.append((describe(name, item), to_bytes(item)))
        return True

    return Encoded(tree.encode(value, path, put), tuple(blobs), tuple(away))
