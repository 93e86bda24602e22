"""Digests of live tensors: native where the bytes lie in host memory, torch operations elsewhere."""

from collections.abc import Sequence

import torch

from everstep import native
from everstep.capture.tensors import on_host, plain
from everstep.native import reference
from everstep.types import Pair


def digest(tensors: Sequence[torch.Tensor], *, threads: int | None = None) -> list[Pair]:
    """Of each tensor, the sum of its mixed (logical index, bits); it does not depend on strides or device."""
    held = [on_host(tensor) if tensor.device.type == "cpu" else tensor for tensor in tensors]
    near = [at for at, tensor in enumerate(held) if plain(tensor)]
    found = native.digest(
        [held[at].data_ptr() for at in near],
        [held[at].numel() for at in near],
        [held[at].element_size() for at in near],
        [0] * len(near),
        torch.get_num_threads() if threads is None else threads,
    )
    pairs: dict[int, Pair] = dict(zip(near, found, strict=True))
    return [pairs[at] if at in pairs else reference.digest(tensor) for at, tensor in enumerate(held)]
