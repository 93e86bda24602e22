"""One small training program under every parallelism, and its whole state as plain tensors."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORDS, WIDTH, INNER = 13, 12, 22


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.first, self.again = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.again.weight = self.first.weight
        self.register_buffer("used", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.used += 1
        return x + self.down(torch.relu(self.up(self.norm(x)))) + self.again(torch.tanh(self.first(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.layers[1].norm.bias.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Program:
    """`kind`: single, ddp, fsdp, hsdp, tp, or 2d."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model: nn.Module = Model()
        world = dist.get_world_size() if dist.is_initialized() else 1
        parallel = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if kind == "fsdp":
            self._shard(init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)))
        elif kind == "hsdp":
            self._shard(init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("rep", "dp")))
        elif kind == "tp":
            mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
            for layer in self.model.layers:  # type: ignore[union-attr]
                parallelize_module(layer, mesh, dict(parallel))
        elif kind == "2d":
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            for layer in self.model.layers:  # type: ignore[union-attr]
                parallelize_module(layer, mesh["tp"], dict(parallel))
            self._shard(mesh["dp"])
        named = dict(self.model.named_parameters())
        plain = [p for n, p in named.items() if ("norm" in n or n.endswith("bias")) and p.requires_grad]
        rest = [p for p in named.values() if all(p is not q for q in plain) and p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [{"params": rest, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 3e-3}], lr=1e-2
        )
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        if kind == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model)

    @property
    def seen(self) -> torch.optim.Optimizer:
        """The optimizer as everstep is given it."""
        return self.optimizer

    def _shard(self, mesh: Any) -> None:
        for layer in self.model.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def step(self, at: int) -> float:
        loss = self.loss(at)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return float(_whole(loss.detach()))

    def loss(self, at: int) -> torch.Tensor:
        """All ranks see the same batch, so that every parallelism trains alike."""
        tokens = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(at))
        return nn.functional.cross_entropy(self.model(tokens).reshape(-1, WORDS), tokens.reshape(-1))

    def whole(self) -> dict[str, torch.Tensor]:
        """Parameters, optimizer state and hyper-parameters by name, gathered; every rank must call it."""
        named = {name.removeprefix("module."): p for name, p in self.model.named_parameters()}
        found = {name: _whole(parameter.detach()) for name, parameter in named.items()}
        for name, parameter in named.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{key} of {name}"] = _whole(value)
        for name, buffer in self.model.named_buffers():
            found[f"buffer of {name.removeprefix('module.')}"] = buffer
        for group in self.optimizer.param_groups:
            for name, parameter in named.items():
                if any(parameter is held for held in group["params"]):
                    found[f"hyper of {name}"] = torch.tensor([group["lr"], group["weight_decay"]])
        return {name: tensor.clone() for name, tensor in found.items()}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def differences(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in sorted(one.keys() | two.keys())
            if name not in one or name not in two or not torch.equal(one[name], two[name])]  # fmt: skip
