"""Small training programs, one per way in which replay can go wrong. The same code runs with everstep and without."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, SequentialLR

import everstep

STEPS = 14


class Langevin(Optimizer):
    """An optimizer nobody else has: whole-tensor norms, a Python counter in its state, and random numbers."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["calls"] = state.get("calls", 0) + 1
                state.setdefault("mean", torch.zeros_like(p)).mul_(0.9).add_(p.grad / (p.grad.norm() + 1e-6))
                p.add_(state["mean"] + 1e-3 * torch.randn_like(p) / state["calls"], alpha=-group["lr"])


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.05),
    "sgd momentum": lambda params: SGD(params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda params: Adam(params, lr=0.01, amsgrad=True, weight_decay=1e-3),
    "adamw foreach": lambda params: AdamW(params, lr=0.01, foreach=True),
    "adamw single": lambda params: AdamW(params, lr=0.01, foreach=False),
    "adamw fused": lambda params: AdamW(params, lr=0.01, fused=True),
    "adagrad": lambda params: Adagrad(params, lr=0.05),
    "rmsprop": lambda params: RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    "our own": lambda params: Langevin(params, lr=0.01),
}
FEATURES = (
    "plain", "clip", "accumulation", "scheduler", "scaler skip", "frozen", "tied", "batch norm", "two groups", "two "
    "optimizers", "bf16",
)  # fmt: skip


class Net(nn.Module):
    def __init__(self, feature: str) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6) if feature == "batch norm" else nn.Identity()
        self.drop = nn.Dropout(0.2)
        self.second = nn.Linear(6, 6, bias=False)
        self.head = nn.Linear(6, 3)
        if feature == "tied":
            self.second.weight = self.first.weight
        if feature == "frozen":
            self.first.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.drop(torch.tanh(self.norm(self.first(x))))))


@dataclass
class Program:
    """A model, its optimizers, what else has state, and one step of training."""

    feature: str
    model: Net
    optimizers: dict[str, Optimizer]
    loader: everstep.Loader
    batches: Iterator[Any]
    scheduler: Any = None
    scaler: Any = None
    seen: list[list[int]] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        held = {"data": self.loader, "scheduler": self.scheduler, "scaler": self.scaler}
        return {name: item for name, item in held.items() if item is not None}

    def step(self, at: int) -> None:
        """One optimizer step, as a user writes it."""
        for _ in range(3 if self.feature == "accumulation" else 1):
            numbers, inputs = next(self.batches)
            self.seen.append(numbers.tolist())
            inputs = inputs.to(self.model.head.weight.dtype) * (1 + 0.1 * random.random())
            loss = self.model(inputs).float().square().mean()
            if self.scaler is not None:
                loss = self.scaler.scale(loss * (float("inf") if at in (3, 7) else 1.0))
            loss.backward()
        if self.feature == "clip":
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        for optimizer in self.optimizers.values():
            self.scaler.step(optimizer) if self.scaler is not None else optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()


class Numbers(torch.utils.data.Dataset[Any]):
    """Samples that say which they are."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, at: int) -> tuple[int, torch.Tensor]:
        return at, torch.sin(torch.arange(6.0) * (at + 1))


def build(optimizer: str, feature: str, seed: int = 5) -> Program:
    """A fresh program, always the same for the same arguments."""
    torch.manual_seed(seed)
    random.seed(seed)
    model = Net(feature)
    if feature == "bf16":
        model = model.bfloat16()
    make = OPTIMIZERS[optimizer]
    if feature == "two optimizers":
        optimizers = {
            "body": make([model.first.weight, model.second.weight]),
            "head": SGD(model.head.parameters(), lr=0.1),
        }
    elif feature == "two groups":
        groups = [
            {"params": [model.first.weight, model.second.weight]},
            {"params": model.head.parameters(), "lr": 0.003},
        ]
        optimizers = {"main": make(groups)}
    else:
        optimizers = {"main": make([p for p in model.parameters() if p.requires_grad])}
    first = next(iter(optimizers.values()))
    scheduler = None
    if feature == "scheduler":
        scheduler = SequentialLR(first, [CosineAnnealingLR(first, 5), MultiStepLR(first, [3, 6])], [5])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4) if feature == "scaler skip" else None
    loader = everstep.Loader(Numbers(), batch_size=8, shuffle=True, seed=seed)
    return Program(feature, model, optimizers, loader, loader.endless(), scheduler, scaler)


def fingerprint(program: Program) -> dict[str, bytes]:
    """Every bit that matters: parameters, buffers, optimizer state, hyper-parameters, generators."""
    found: dict[str, Any] = dict(program.model.state_dict())
    for key, optimizer in program.optimizers.items():
        for at, group in enumerate(optimizer.param_groups):
            found[f"{key}/{at}"] = repr({name: value for name, value in group.items() if name != "params"})
        for name, p in program.model.named_parameters():
            for item, value in sorted(optimizer.state.get(p, {}).items()):
                found[f"{key}/{name}/{item}"] = value
    found["torch"], found["python"] = torch.get_rng_state(), repr(random.getstate())
    for name in ("scheduler", "scaler"):
        held = getattr(program, name)
        found[name] = repr(held.state_dict()) if held is not None else ""
    return {
        name: value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        if isinstance(value, torch.Tensor)
        else repr(value).encode()
        for name, value in found.items()
    }
