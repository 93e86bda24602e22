"""The programs that trained the committed checkpoints, as a user has them: a fresh model and torch's own optimizer."""

from typing import Any

import torch
from torch import nn

Program = tuple[nn.Module, torch.optim.Optimizer]


class Net(nn.Module):
    """As in tests/fixtures/foreign/make.py, initialised otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(99)
        self.a, self.bn, self.frozen, self.b = nn.Linear(7, 11), nn.BatchNorm1d(11), nn.Linear(11, 11), nn.Linear(11, 3)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.frozen(self.bn(self.a(x))))


class Tied(nn.ModuleDict):
    def __init__(self) -> None:
        torch.manual_seed(99)
        head = nn.Linear(4, 5, bias=False)
        super().__init__({"embed": nn.Embedding(5, 4), "norm": nn.BatchNorm1d(4), "head": head})
        head.weight = self["embed"].weight

    def forward(self, x: torch.Tensor) -> Any:
        return self["head"](self["norm"](self["embed"](x)))


def plain() -> Program:
    net = Tied()
    return net, torch.optim.AdamW(net.parameters(), lr=0.5)


def zero(low: torch.dtype = torch.float32) -> Program:
    net = Net()
    net.frozen.to(low)
    for name in ("running_mean", "running_var"):
        net.bn.register_buffer(name, net.bn.get_buffer(name).to(low))
    return net, torch.optim.AdamW(
        [{"params": [net.a.weight, net.b.weight]},
         {"params": [net.a.bias, net.b.bias, net.bn.weight, net.bn.bias]}],
        lr=0.5,
    )  # fmt: skip


def dcp() -> Program:
    net = Net()
    net.frozen = net.b = nn.Identity()  # type: ignore[assignment]
    return net, torch.optim.AdamW([{"params": [net.a.weight]}, {"params": [net.a.bias]}], lr=0.5)


def dcp_nested() -> Program:
    net = Net()
    groups = [{"params": [net.a.weight, net.b.weight]}, {"params": [net.a.bias]}]
    return net, torch.optim.SGD(groups, lr=0.5, momentum=0.1)


PROGRAMS = {
    "plain": plain, "dcp": dcp, "dcp_nested": dcp_nested, "zero1": zero, "zero2": lambda: zero(torch.bfloat16),
    "zero3": zero, "zero1_universal": zero, "zero3_universal": zero,
}  # fmt: skip


def held(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor of a program under the names of `everstep.foreign.found`."""
    found = {f"model/{name}": tensor.detach() for name, tensor in net.named_parameters()}
    found |= {f"model/{name}": tensor for name, tensor in net.named_buffers()}
    for name, parameter in net.named_parameters():
        for state, value in optimizer.state.get(parameter, {}).items():
            found[f"optimizer/{state}/{name}"] = value
    return found


def hyper(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, float]]:
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return {
        names[id(parameter)]: {key: group[key] for key in ("lr", "weight_decay")}
        for group in optimizer.param_groups for parameter in group["params"]
    }  # fmt: skip


def differing(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    """The names that are not in both with the same type, shape and bits."""
    return sorted(one.keys() ^ two.keys()) + [
        name for name in sorted(one.keys() & two.keys())
        if one[name].dtype != two[name].dtype or not torch.equal(one[name], two[name])
    ]  # fmt: skip
