"""Where tensors lie and how often they were written to: cheap, and different once one was edited or replaced.

Looked at three times per step, for every tensor that the optimizers hold: what did not change is not worked out again.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch

from everstep.capture.shards import local
from everstep.types import Pair


class Marks:
    """Of the same tensors again and again, most often. Values that are no tensors have none."""

    def __init__(self) -> None:
        self._values: Sequence[Any] = ()
        self._held: list[torch.Tensor] = []

    def look(self, values: Sequence[Any]) -> list[Pair]:
        if len(values) != len(self._values) or not all(map(operator.is_, values, self._values)):
            self._values = values
            self._held = [local(value) for value in values if isinstance(value, torch.Tensor)]
        return [(held.data_ptr(), held._version) for held in self._held]  # noqa: SLF001
