"""What is saved, and onto what it is loaded."""

from dataclasses import dataclass

from bench.models import Shape


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, and how often each load is repeated, cold and warm."""

    shape: Shape
    turns: int
    steps: int = 5
    """Recorded after the base."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parallelism to load onto. `zero`: DeepSpeed's nearest kind; empty where it has none for a plain model."""

    title: str
    kind: str
    world: int
    zero: str = ""


FULL = Plan(Shape(layers=18, width=1024, heads=16, batch=1), turns=3)
QUICK = Plan(Shape(layers=2, width=256, heads=4, batch=1, length=64, vocabulary=4096), turns=2)

SAVED = Target("FSDP2 x 4", "fsdp", 4, "ZeRO-3 x 4")
TARGETS = (
    Target("FSDP2 x 2", "fsdp", 2, "ZeRO-3 x 2"),
    Target("FSDP2 x 2 with TP x 2", "2d", 4),
    Target("one process", "single", 1, "ZeRO-3 x 1"),
)
