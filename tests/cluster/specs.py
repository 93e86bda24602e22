"""Programs of plain tensors that are parts of others, as a spec says: hand-written parallelism without DTensors.

Gradients are drawn for the logical tensors and cut like them, so every layout trains the same model.
"""

import functools
import math

import torch
from torch import nn

from everstep.layout.language import Experts, Flat, Fused, Pad, Replicate, Shard, Slice, Stack, Unique
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec
from everstep.types import Local, Piece

LOGICAL = {
    "embed": (13, 8), "qkv": (24, 8), "out": (8, 8), "w": (4, 6, 5), "norm": (8,), "experts": (6, 4, 3)
}  # fmt: skip
LAYERS = {f"w_{at}": LOGICAL["w"] for at in range(4)}
HEADS = Fused(0, tuple(Slice(8, (Shard("tp", 0),)) for _ in range(3)))
STAGES = Unique("pp", stages=((0, 2), (1, 3)), index="l")

SPECS = {
    "single": Spec(Mesh(), (Rule(".*"),), shapes=LOGICAL),
    "tp": Spec(
        Mesh((("tp", 2),)),
        (
            Rule("embed", (Pad(0, 4, "tp"), Shard("tp", 0))), Rule("qkv", (HEADS,)), Rule("out", (Shard("tp", 1),)),
            Rule("experts", (Experts("tp"),)), Rule("w|norm", (Replicate("tp"),)),
        ),
        shapes=LOGICAL,
    ),
    "stages": Spec(
        Mesh((("pp", 2),)),
        (
            Rule(r"w_(?P<l>\d+)", (STAGES, Stack(0, "l")), "w"), Rule("embed|qkv", (Unique("pp", 0),)),
            Rule("out|norm|experts", (Unique("pp", 1),)),
        ),
        shapes={name: shape for name, shape in {**LOGICAL, **LAYERS}.items() if name != "w"},
    ),
    "zero": Spec(Mesh((("dp", 3),)), (Rule(".*", (Flat("dp"),)),), shapes=LOGICAL),
    "grid": Spec(
        Mesh((("dp", 2), ("tp", 2))),
        (
            Rule("embed", (Pad(0, 4, "tp"), Shard("tp", 0), Flat("dp"))), Rule("qkv", (HEADS, Flat("dp"))),
            Rule("out", (Shard("tp", 1), Flat("dp"))), Rule("w", (Shard("dp", 0), Replicate("tp"))),
            Rule("norm", (Replicate("dp"), Replicate("tp"))),
            Rule("experts", (Replicate("dp"), Experts("tp", 0, ((4, 0, 2), (1, 5, 3))))),
        ),
        shapes=LOGICAL,
    ),
}  # fmt: skip


class Program:
    """One rank's tensors under a spec."""

    def __init__(self, kind: str, rank: int, seed: int = 0) -> None:
        self.spec = SPECS[kind]
        self.held = self.spec.locals(self.spec.shapes, rank)
        self.model = nn.Module()
        for name, held in self.held.items():
            start = torch.full(held.shape, 0.5 + seed)
            self.model.register_parameter(name, nn.Parameter(start))
            fill(start, held, drawn(held.logical, held.logical_shape, seed))
        parameters = dict(self.model.named_parameters())
        plain = [parameter for name, parameter in parameters.items() if name == "norm"]
        rest = [parameter for name, parameter in parameters.items() if name != "norm"]
        groups = [{"params": rest, "weight_decay": 0.1}, *([{"params": plain, "weight_decay": 0.0}] if plain else [])]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)

    def step(self, at: int) -> None:
        for name, parameter in self.model.named_parameters():
            held = self.held[name]
            parameter.grad = torch.zeros_like(parameter)
            fill(parameter.grad, held, drawn(held.logical, held.logical_shape, 100 + at))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def differing(self, steps: int) -> list[str]:
        """What here is not as in a model that was trained in one piece."""
        wanted = trained(steps)
        wrong = []
        for name, parameter in self.model.named_parameters():
            held = self.held[name]
            state = self.optimizer.state[parameter]
            tensors = {"value": parameter, "exp_avg": state.get("exp_avg"), "exp_avg_sq": state.get("exp_avg_sq")}
            for kind, tensor in tensors.items():
                for piece in held.pieces:
                    whole = wanted[held.logical][kind][box(piece)]
                    if tensor is None or not torch.equal(view(tensor.detach(), piece), whole):
                        wrong.append(f"{kind} of {name} {piece.box}")
            if state.get("step") != steps:
                wrong.append(f"step of {name}: {state.get('step')}")
        return wrong


@functools.cache
def trained(steps: int) -> dict[str, dict[str, torch.Tensor]]:
    program = Program("single", 0)
    for at in range(steps):
        program.step(at)
    return {
        name: {
            "value": parameter.detach(), **{k: v for k, v in program.optimizer.state[parameter].items() if k != "step"}
        }
        for name, parameter in program.model.named_parameters()
    }  # fmt: skip


@functools.cache
def drawn(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed * 1000 + sum(map(ord, name)))
    return torch.randn(shape, generator=source)


def fill(buffer: torch.Tensor, held: Local, whole: torch.Tensor) -> None:
    for piece in held.pieces:
        view(buffer, piece).copy_(whole[box(piece)])


def view(buffer: torch.Tensor, piece: Piece) -> torch.Tensor:
    assert math.prod(buffer.shape) == buffer.numel()
    return torch.as_strided(buffer, piece.box.shape, piece.strides, piece.base)


def box(piece: Piece) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in zip(piece.box.low, piece.box.high, strict=True))
