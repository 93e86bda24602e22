"""An optimizer that steps flat buckets, seen as one that steps the tensors which lie in them.

ZeRO lays the parameters of a group end to end, pads them and cuts them into shares; the share of a rank is all that its
optimizer knows. Here each tensor's part of a bucket is a parameter of its own, a view of the bucket's memory, and so
are its gradient and its state. Records and bases name them as they name those of any other program, so any other
program goes on from them. The bucket itself is named nowhere.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import nn

from everstep.errors import CannotReplay, Misdescribed, Mismatch
from everstep.types import Local

Hook = Callable[[torch.optim.Optimizer, Any, Any], None]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A tensor, whose elements are taken as one row, and by name the tensors of which it may hold a part, as a spec
    says it; those that other ranks hold have no pieces here."""

    tensor: torch.Tensor
    held: Mapping[str, Local]


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a tensor lies in a bucket, from its element `first` on."""

    name: str
    bucket: torch.Tensor
    first: int
    view: nn.Parameter
    local: Local

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The same part of something that lies as the bucket does."""
        return flat.detach().view(-1)[self.first : self.first + self.view.numel()]


class Buckets(torch.optim.Optimizer):
    """`optimizer`, whose parameters are buckets: of each param group its own, in order. `fixed` are buckets that nobody
    steps. `arrived` is called once the buckets hold a step that was resumed: it brings the model there. `said` are the
    param groups whose hyper-parameters count, where the optimizer is only told of them as it steps.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[Bucket]], *, fixed: Sequence[Bucket] = (),
        arrived: Callable[[], None] = lambda: None, said: Sequence[dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        if len(groups) != len(optimizer.param_groups):
            raise Misdescribed(f"{len(groups)} groups of buckets for an optimizer of {len(optimizer.param_groups)}.")
        self.inner = optimizer
        self.state = defaultdict(dict)
        self._arrived = arrived
        self._groups = list(optimizer.param_groups)
        self._said = self._groups if said is None else said
        self._stepped = [[(bucket.tensor, list(_parts(bucket))) for bucket in group] for group in groups]
        self._views = [[part.view for _, parts in group for part in parts] for group in self._stepped]
        self._known: dict[int, dict[str, Any]] = {}
        everything = [bucket for group in groups for bucket in group] + list(fixed)
        self.names = [name for bucket in everything for name in bucket.held]
        """Of all that lies in buckets, here or elsewhere."""
        if len(set(self.names)) < len(self.names):
            raise Misdescribed(f"{max(self.names, key=self.names.count)!r} lies in two buckets.")
        self._here = [part for _, parts in self._buckets() for part in parts]
        self._here += [part for bucket in fixed for part in _parts(bucket)]
        self._look()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """What lies here, by name."""
        return {part.name: part.view for part in self._here}

    @property
    def layout(self) -> dict[str, Local]:
        """Which parts of which tensors these are."""
        return {part.name: part.local for part in self._here}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's own groups with other parameters; what is written to one is written to its own."""
        return [
            _Group(said, own, views) for said, own, views in zip(self._said, self._groups, self._views, strict=True)
        ]

    @property
    def grad_scale(self) -> Any:
        return getattr(self.inner, "grad_scale", None)

    @property
    def found_inf(self) -> Any:
        return getattr(self.inner, "found_inf", None)

    def register_step_pre_hook(self, hook: Hook) -> Any:  # type: ignore[override]
        """Called as the optimizer is about to step some of its buckets; what lies in the others has no gradients."""

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            now = {id(bucket) for group in optimizer.param_groups for bucket in group["params"]}
            for bucket, parts in self._buckets():
                gradient = bucket.grad.contiguous() if id(bucket) in now and bucket.grad is not None else None
                for part in parts:
                    part.view.grad = None if gradient is None else part.of(gradient)
            hook(self, args, kwargs)

        return self.inner.register_step_pre_hook(before)

    def register_step_post_hook(self, hook: Hook) -> Any:
        def after(_optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._forget_gradients()
            self._look()
            hook(self, args, kwargs)

        return self.inner.register_step_post_hook(after)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """For a replay: what has gradients is stepped, by the optimizer that trained."""
        assert closure is None
        self._fill()
        with self._whole_groups():
            for bucket, parts in self._buckets():
                given = [part for part in parts if part.view.grad is not None]
                if given and len(given) < len(parts):
                    raise CannotReplay(f"there are gradients of {given[0].name!r}, but not of all that lies beside it.")
                bucket.grad = torch.zeros_like(bucket) if given else None
                for part in given:
                    part.of(bucket.grad).copy_(part.view.grad)  # type: ignore[arg-type]
            self.inner.step()
            for bucket, _ in self._buckets():
                bucket.grad = None
        self._look()

    def settle(self) -> None:
        """What was restored, part by part, is in the buckets and in the optimizer from now on, and in the model."""
        self._forget_gradients()
        self._fill()
        self._look()
        self._arrived()

    def _buckets(self) -> Iterator[tuple[torch.Tensor, list[_Part]]]:
        for group in self._stepped:
            yield from group

    @contextmanager
    def _whole_groups(self) -> Iterator[None]:
        """Some optimizers are given their parameters only for the moment of a step."""
        before = [group["params"] for group in self._groups]
        for group, buckets in zip(self._groups, self._stepped, strict=True):
            group["params"] = [bucket for bucket, _ in buckets]
        try:
            yield
        finally:
            for group, parameters in zip(self._groups, before, strict=True):
                group["params"] = parameters

    def _forget_gradients(self) -> None:
        for part in self._here:
            part.view.grad = None

    def _look(self) -> None:
        """The state of each part is a part of the bucket's; tensors that were not replaced are not looked at again."""
        for bucket, parts in self._buckets():
            held: dict[str, Any] = self.inner.state.get(bucket, {})
            known = self._known.get(id(bucket), {})
            if held.keys() == known.keys() and all(held[key] is known[key] for key in held):
                continue
            self._known[id(bucket)] = dict(held)
            for part in parts:
                self.state[part.view] = {
                    key: part.of(value) if _flat(value, bucket) else value for key, value in held.items()
                }

    @torch.no_grad()
    def _fill(self) -> None:
        """The state of a bucket is that of its parts; of its padding, zeros."""
        for bucket, parts in self._buckets():
            told = [self.state.get(part.view) or {} for part in parts]
            if any(one.keys() != told[0].keys() for one in told):
                odd = next(part.name for part, one in zip(parts, told, strict=True) if one.keys() != told[0].keys())
                raise Mismatch(f"{odd!r} has other optimizer state than {parts[0].name!r}, which lies beside it.")
            held: dict[str, Any] = {}
            for key in told[0] if told else ():
                held[key] = self._joined(key, bucket, parts, [one[key] for one in told])
            if held:
                self.inner.state[bucket] = held
            else:
                self.inner.state.pop(bucket, None)

    def _joined(self, key: str, bucket: torch.Tensor, parts: Sequence[_Part], values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, torch.Tensor) and first.dim() and first.shape == parts[0].view.shape:
            known = self.inner.state.get(bucket, {}).get(key)
            if isinstance(known, torch.Tensor) and all(
                value.data_ptr() == part.of(known).data_ptr() for part, value in zip(parts, values, strict=True)
            ):
                return known
            flat = torch.zeros_like(bucket, dtype=first.dtype, requires_grad=False)  # as contiguous as the bucket is
            for part, value in zip(parts, values, strict=True):
                part.of(flat).copy_(value)
            return flat
        for part, value in zip(parts, values, strict=True):
            alike = torch.equal(value, first) if isinstance(first, torch.Tensor) else value == first
            if not alike:
                raise Mismatch(
                    f"{key!r} of {part.name!r} is {value}, and of {parts[0].name!r}, which lies beside it, {first}: an "
                    "optimizer of buckets has one for both. Resume where each has its own."
                )
        return first


class _Group(dict[str, Any]):
    """A param group whose parameters are others than its optimizer's."""

    def __init__(self, said: dict[str, Any], own: dict[str, Any], views: list[nn.Parameter]) -> None:
        super().__init__({**said, "params": views})
        self._said, self._own = said, own

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self._said[key] = self._own[key] = value


def bare(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that does the arithmetic."""
    return optimizer.inner if isinstance(optimizer, Buckets) else optimizer


def _parts(bucket: Bucket) -> Iterator[_Part]:
    """What lies in a bucket, in the order in which it lies there."""
    if not bucket.tensor.is_contiguous():
        raise Misdescribed(f"the elements of a bucket must lie in one row; {tuple(bucket.tensor.shape)} is strided.")
    flat, free = bucket.tensor.detach().view(-1), 0
    for name, held in sorted(bucket.held.items(), key=lambda item: min((p.base for p in item[1].pieces), default=0)):
        if held.shape != tuple(flat.shape):
            raise Misdescribed(f"{name!r} is said to lie in a bucket of {held.shape}, not of {tuple(flat.shape)}.")
        if (fault := held.fault()) is not None:
            raise Misdescribed(f"{name!r}: {fault}.")
        if not held.pieces:
            continue
        first, last = _stretch(held)
        length = sum(math.prod(piece.box.shape) for piece in held.pieces)
        if first < free or last - first != length:
            raise Misdescribed(f"{name!r} does not lie in one stretch of its own in its bucket.")
        free = last
        pieces = tuple(msgspec.structs.replace(piece, base=piece.base - first) for piece in held.pieces)
        local = msgspec.structs.replace(held, shape=(length,), pieces=pieces)
        view = nn.Parameter(flat[first:last], requires_grad=bucket.tensor.requires_grad)
        yield _Part(name, bucket.tensor, first, view, local)


def _stretch(held: Local) -> tuple[int, int]:
    ends = [
        piece.base + sum((extent - 1) * step for extent, step in zip(piece.box.shape, piece.strides, strict=True)) + 1
        for piece in held.pieces
    ]
    return min(piece.base for piece in held.pieces), max(ends)


def _flat(value: Any, bucket: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == bucket.shape
