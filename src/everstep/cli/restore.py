"""`everstep restore`: the state at a step as one file. Tensors by name; everything else as JSON beside them."""

import ctypes

import msgspec
import torch

from everstep.capture.context import encode
from everstep.capture.tensors import describe, on_host
from everstep.cli import text
from everstep.cli.progress import waiting
from everstep.recover.restore import restore as restored
from everstep.store import export, torchfile
from everstep.types import Bytes, Tensor


def restore(url: str, step: int | None, target: str, form: str, *, force: bool) -> None:
    export.refuse(target, force=force)  # before the work, not after it
    with waiting("restoring"):
        found = restored(url, step)
        held: list[tuple[Tensor, Bytes]] = []
        alive = [on_host(tensor) for tensor in found.tensors.values()]
        for name, tensor in zip(found.tensors, alive, strict=True):
            held.append((describe(name, tensor), _bytes(tensor)))
        trees = {}
        for name, item in found.context.items():
            encoded = encode(f"context/{name}", item)
            trees[name] = encoded.tree
            held += encoded.blobs
        notes = msgspec.json.encode({"step": found.step, "context": trees})
        if form == "torch":
            length = export.publish(target, torchfile.pieces(held, notes), force=force)
        else:
            pieces = export.safetensors(held, found.step, {"everstep.context": notes.decode()})
            length = export.publish(target, pieces, force=force)
    text.echo(str(found.ledger))
    text.echo(f"{target}: {text.count(len(held), 'tensor')}, {text.size(length)}")


def _bytes(tensor: torch.Tensor) -> Bytes:
    """The tensor's own memory, not a copy; the caller keeps the tensor alive."""
    count = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * count).from_address(tensor.data_ptr())).cast("B") if count else b""
