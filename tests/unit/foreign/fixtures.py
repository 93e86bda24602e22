"""The committed checkpoints of other systems, and how a test looks into what was found in them."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from everstep.foreign.found import Checkpoint

FOLDER = Path(__file__).parents[2] / "fixtures" / "foreign"
KINDS = {
    "plain": "torch.save",
    "hf": "safetensors",
    "dcp": "torch.distributed.checkpoint",
    "dcp_nested": "torch.distributed.checkpoint",
    "mcore": "megatron torch_dist",
    "zero1": "deepspeed zero-1",
    "zero2": "deepspeed zero-2",
    "zero3": "deepspeed zero-3",
    "zero1_universal": "deepspeed universal",
    "zero3_universal": "deepspeed universal",
}
CHECKSUMMED = [name for name in KINDS if name != "hf"]
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "F64": torch.float64, "U8": torch.uint8}


def path(name: str) -> str:
    return str(FOLDER / name)


def copied(name: str, target: Path) -> Path:
    shutil.copytree(FOLDER / name, target / name)
    return target / name


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def reference(name: str) -> dict[str, torch.Tensor]:
    return load_file(FOLDER / f"{name.removesuffix('_universal')}.safetensors")


def groups(name: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((FOLDER / f"{name.removesuffix('_universal')}.json").read_text())
    return found


def tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Every logical tensor, read from its places. What no box covers stays NaN."""
    found: dict[str, torch.Tensor] = {}
    for part in checkpoint.tensors:
        tensor, place = part.tensor, part.place
        dtype = DTYPES[tensor.dtype]
        if tensor.name not in found:
            poison = float("nan") if dtype.is_floating_point else -1
            found[tensor.name] = torch.full(tensor.shape, poison).to(dtype)
        with open(place.path, "rb") as file:
            file.seek(place.offset)
            raw = bytearray(file.read(place.nbytes))
        where = tuple(slice(low, high) for low, high in zip(tensor.box.low, tensor.box.high, strict=True))
        if raw:
            found[tensor.name][where] = torch.frombuffer(raw, dtype=dtype).reshape(tensor.box.shape)
    return found
