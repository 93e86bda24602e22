"""everstep beside the field's own tools, one file each; loaded when first used."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("deepspeed", "loader", "zero_redundancy"):
        return import_module(f"everstep.integrations.{name}")
    raise AttributeError(f"module 'everstep.integrations' has no attribute {name!r}")
