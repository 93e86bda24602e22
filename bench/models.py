"""The programs an overhead is measured on: the GPT-2 sizes, ResNet-50, and a GPT small enough for two CPU cores.

Each is a model, its optimizer and one training step over fixed random data, so that nothing but the step takes time.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 torch's own habit
from torch import nn


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPT and its batch."""

    layers: int
    width: int
    heads: int
    batch: int
    length: int = 1024
    vocabulary: int = 50304


SHAPES = {
    "gpt-tiny": Shape(layers=2, width=192, heads=4, batch=8, length=64, vocabulary=2048),
    "gpt-124m": Shape(layers=12, width=768, heads=12, batch=16),
    "gpt-355m": Shape(layers=24, width=1024, heads=16, batch=16),
    "gpt-774m": Shape(layers=36, width=1280, heads=20, batch=16),
    # A whole state takes longer than a step.
    "gpt-774m-short": Shape(layers=36, width=1280, heads=20, batch=12),
    # Parameters, moments and gradients take 25 GB, a batch of 16 less than 60 GB more: no recomputation is needed.
    "gpt-1.5b": Shape(layers=48, width=1600, heads=25, batch=16),
}
IMAGES, PIXELS, CLASSES = 256, 224, 1000


@dataclass(frozen=True, slots=True)
class Program:
    """What a user's script holds. `step` trains once: forward, backward, optimizer, zero_grad; it returns the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], torch.Tensor]
    device: torch.device

    def bytes_of(self, source: str) -> int:
        """What a checkpoint of one step holds: "gradient fp32", "layer fp32", "gradient bf16" or the whole "state"."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if source == "state":
            moments = (value for state in self.optimizer.state.values() for value in state.values())
            tensors = [*self.model.parameters(), *self.model.buffers(), *moments]
            return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
        return sum(p.numel() * (2 if source.endswith("bf16") else 4) for p in trained)


def build(name: str, *, compiled: bool, device: torch.device) -> Program:
    """A program at its start. Compiling happens in its first step."""
    torch.manual_seed(1)
    if name == "resnet-50":
        return _images(compiled, device)
    return _text(SHAPES[name], compiled, device)


def _text(shape: Shape, compiled: bool, device: torch.device) -> Program:
    with device:
        model = GPT(shape)
        tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    forward = torch.compile(model) if compiled else model
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Program(model, optimizer, _step(forward, optimizer, inputs, targets), device)


def _images(compiled: bool, device: torch.device) -> Program:
    with device:
        model = ResNet50().to(memory_format=torch.channels_last)
        images = torch.randn(IMAGES, 3, PIXELS, PIXELS).to(memory_format=torch.channels_last)
        labels = torch.randint(0, CLASSES, (IMAGES,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    forward = torch.compile(model) if compiled else model
    return Program(model, optimizer, _step(forward, optimizer, images, labels), device)


def _step(
    forward: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], torch.Tensor]:
    cuda = inputs.is_cuda

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16) if cuda else contextlib.nullcontext():
            loss = forward(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Block(nn.Module):
    """Attention and a multilayer perceptron, each behind its norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.attend(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2 with a tied head; returns the loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride), 1x1, and a shortcut."""

    def __init__(self, inner: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inner, channels, 1), nn.ReLU(inplace=True),
            *_convolution(channels, channels, 3, stride), nn.ReLU(inplace=True),
            *_convolution(channels, 4 * channels, 1),
        )  # fmt: skip
        plain = stride == 1 and inner == 4 * channels
        self.shortcut = nn.Identity() if plain else nn.Sequential(*_convolution(inner, 4 * channels, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    """The network of He et al. with the stride in the 3x3 convolution; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1))
        self.stages = nn.Sequential(*_stages())
        self.head = nn.Linear(2048, CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.stages(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(x).float(), labels)


def _stages() -> Iterator[Bottleneck]:
    inner = 64
    for channels, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(count):
            yield Bottleneck(inner, channels, stride if at == 0 else 1)
            inner = 4 * channels


def _convolution(inner: int, outer: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inner, outer, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outer)
