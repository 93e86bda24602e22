"""Torch tensors as named, typed, contiguous bytes in host memory, and back."""

import ctypes
import math

import torch

from everstep.capture.shards import box_of, local
from everstep.errors import Damaged, Unsupported
from everstep.types import Tensor

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64", torch.complex128: "C128",
}  # fmt: skip
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


def describe(name: str, tensor: torch.Tensor) -> Tensor:
    """What a file says of this tensor: the part of it that this process holds, and which box of the whole that is."""
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES or tensor.is_meta:
        raise Unsupported(
            f"{name}: a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device} cannot be recorded."
        )
    held = local(tensor)
    nbytes = held.numel() * held.element_size()
    return Tensor(name, DTYPES[tensor.dtype], tuple(tensor.shape), box_of(name, tensor), nbytes)


def plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes lie in host memory in logical order."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with their bytes in logical order, where they are; the tensor itself when they lie so already."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.resolve_conj().resolve_neg().contiguous()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in host memory in logical order; the tensor itself when it lies so already."""
    tensor = local(tensor).detach()
    return tensor if plain(tensor) else in_order(tensor).cpu()


def to_bytes(tensor: torch.Tensor) -> bytes:
    """A copy of the tensor's bytes in logical order."""
    held = on_host(tensor)
    return ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()) if held.numel() else b""


def view(memory: memoryview, described: Tensor) -> torch.Tensor:
    """A tensor over these writable bytes, not a copy; it keeps them alive."""
    dtype, shape = TORCH_DTYPES[described.dtype], described.box.shape
    if memory.nbytes != described.nbytes or math.prod(shape) * dtype.itemsize != described.nbytes:
        raise Damaged(f"tensor {described.name!r}: {memory.nbytes} bytes where {described.nbytes} were expected.")
    if not described.nbytes:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
