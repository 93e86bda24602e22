"""A GPT with its AdamW state under each parallelism. Gradients are made up: loading does not depend on training."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from bench.models import GPT, Shape
from everstep.capture.digests import digest
from everstep.capture.shards import like, local

BY_COLUMNS, BY_ROWS = ("attend", "up"), ("mix", "down")


class Program:
    """What a user's script holds. Every rank builds the same model from the same seed and keeps its part."""

    def __init__(self, shape: Shape, kind: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = GPT(shape)
        world = dist.get_world_size() if dist.is_initialized() else 1
        if kind == "fsdp":
            self._shard(init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)))
        elif kind == "2d":
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            plan: dict[str, Any] = {name: ColwiseParallel() for name in BY_COLUMNS}
            plan |= {name: RowwiseParallel() for name in BY_ROWS}
            for block in self.model.blocks:  # type: ignore[union-attr]
                parallelize_module(block, mesh["tp"], plan)
            self._shard(mesh["dp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> None:
        """An optimizer step on random gradients; nothing is communicated."""
        for parameter in self.model.parameters():
            parameter.grad = like(parameter, torch.randn_like(local(parameter)).mul_(1e-3))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def forget(self) -> None:
        """Parameters that no checkpoint holds, so that a load which does nothing is seen."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                local(parameter).zero_()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The local parts of everything a checkpoint restores."""
        found = {name: local(parameter) for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{name}/{key}"] = local(value)
        return found

    def digests(self) -> dict[str, tuple[int, int]]:
        held = self.tensors()
        return dict(zip(held, digest(list(held.values())), strict=True))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def _shard(self, mesh: Any) -> None:
        for block in self.model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
