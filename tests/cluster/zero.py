"""The same program under ZeRO: torch's own, and one written by hand as DeepSpeed does it, where parameters are laid end
to end, each rank's optimizer steps its share of them, one param group after the other, and the model is put together
again."""

from collections.abc import Callable
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from everstep.capture.buckets import Bucket, Buckets
from everstep.integrations import zero_redundancy
from everstep.layout import Spec
from everstep.types import Piece
from tests.cluster.programs import Program


class Zero(Program):
    """`kind`: zero1, one bucket for each param group, or zero3, where each parameter is cut by itself."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        super().__init__("single", seed)
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self._named = dict(self.model.named_parameters())
        names = {id(p): name for name, p in self._named.items()}
        groups = [[names[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]
        shapes = [{name: tuple(self._named[name].shape) for name in group} for group in groups]
        self._spec = Spec.from_deepspeed(shapes, stage=int(kind[-1]), ranks=self._world)
        cut = [[[name] for name in group] if kind == "zero3" else [group] for group in groups]
        self._buckets = [[self._bucket(held) for held in group] for group in cut]
        self.optimizer = torch.optim.AdamW([
            {**group, "params": [bucket.tensor for bucket in buckets]}
            for group, buckets in zip(self.optimizer.param_groups, self._buckets, strict=True)
        ])  # fmt: skip
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self._seen = Buckets(self.optimizer, self._buckets, arrived=self._put_together)

    @property
    def seen(self) -> Buckets:
        return self._seen

    def step(self, at: int) -> float:
        loss = self.loss(at)
        loss.backward()
        for bucket in chain(*self._buckets):
            bucket.tensor.grad = torch.zeros_like(bucket.tensor)
            self._share(bucket, bucket.tensor.grad, lambda p: p.grad)  # type: ignore[arg-type, return-value]
        self.model.zero_grad()
        groups = self.optimizer.param_groups
        for group in groups:  # as DeepSpeed does: for the moment of a step the optimizer has one group
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = groups
        self._put_together()
        self.schedule.step()
        return float(loss.detach())

    def whole(self) -> dict[str, torch.Tensor]:
        found = super().whole()
        for group, buckets in zip(self.optimizer.param_groups, self._buckets, strict=True):
            for bucket in buckets:
                for name in bucket.held:
                    found[f"hyper of {name}"] = torch.tensor([group["lr"], group["weight_decay"]])
                for key, value in self.optimizer.state.get(bucket.tensor, {}).items():
                    for name in bucket.held:
                        full = value.clone() if value.dim() == 0 else torch.zeros(self._spec.shapes[name])
                        found[f"{key} of {name}"] = full
                    if value.dim():
                        self._gather(bucket, value, lambda name, key=key: found[f"{key} of {name}"])
        return found

    def _bucket(self, names: list[str]) -> Bucket:
        mine = self._spec.locals(self._spec.shapes, self._rank)
        bucket = Bucket(nn.Parameter(torch.zeros(mine[names[0]].shape)), {name: mine[name] for name in names})
        self._share(bucket, bucket.tensor.data, lambda p: p.data)
        return bucket

    def _share(self, bucket: Bucket, flat: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """This rank's share of something that every rank has of each parameter."""
        for name, local in bucket.held.items():
            for piece in local.pieces:
                _lying(flat, piece).copy_(_boxed(of(self._named[name]), piece))

    def _gather(self, bucket: Bucket, flat: torch.Tensor, to: Callable[[str], torch.Tensor]) -> None:
        """Of each parameter the whole, from the shares of all ranks."""
        flats = [flat.detach()]
        if self._world > 1:
            flats = [torch.zeros_like(flat) for _ in range(self._world)]
            dist.all_gather(flats, flat.detach())
        for rank, theirs in enumerate(flats):
            held = self._spec.locals(self._spec.shapes, rank)
            for name in bucket.held:
                for piece in held[name].pieces:
                    _boxed(to(name), piece).copy_(_lying(theirs, piece))

    def _put_together(self) -> None:
        for bucket in chain(*self._buckets):
            self._gather(bucket, bucket.tensor, lambda name: self._named[name].data)


class Redundant(Program):
    """Whole parameters, each stepped by one rank: torch's ZeroRedundancyOptimizer."""

    def __init__(self, _kind: str, seed: int = 0) -> None:
        super().__init__("ddp", seed)
        groups = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer = ZeroRedundancyOptimizer(groups, torch.optim.AdamW, lr=1e-2)  # type: ignore[assignment]
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self._seen = zero_redundancy.seen(self.model, self.optimizer)  # type: ignore[arg-type]

    @property
    def seen(self) -> Buckets:
        return self._seen

    def whole(self) -> dict[str, torch.Tensor]:
        names = {id(p): name.removeprefix("module.") for name, p in self.model.named_parameters()}
        own = {
            f"{key} of {names[id(p)]}": value
            for p, held in self.optimizer.optim.state.items() for key, value in held.items()  # type: ignore[attr-defined]
        }  # fmt: skip
        found: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(found, own)
        return super().whole() | {name: value for one in found for name, value in one.items()}


def made(kind: str, seed: int = 0) -> Program:
    if kind == "redundant":
        return Redundant(kind, seed)
    return Zero(kind, seed) if kind.startswith("zero") else Program(kind, seed)


def _lying(flat: torch.Tensor, piece: Piece) -> torch.Tensor:
    return torch.as_strided(flat, piece.box.shape, piece.strides, piece.base)


def _boxed(whole: torch.Tensor, piece: Piece) -> torch.Tensor:
    return whole[tuple(map(slice, piece.box.low, piece.box.high))]
