"""A base's tensor file is a safetensors file: the real library reads what we wrote."""

from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file

from everstep.capture.digests import digest
from everstep.capture.tensors import DTYPES, describe, to_bytes
from everstep.recover import load
from everstep.store import base, names
from everstep.store.disk import LocalDisk
from everstep.store.manifest import BaseEntry
from everstep.types import printed

CONTENT = base.Content((), {}, (), {}, "", "", {})
TENSORS = {
    "bf16": torch.tensor([[1.0, -2.5], [3.0, 4.0]], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False, True]),
    "c64": torch.tensor([[1 + 2j, 3j], [4, 5]], dtype=torch.complex64).t(),
    "c128": torch.tensor([1 + 2j], dtype=torch.complex128).conj(),
    "empty": torch.empty(0, 5),
    "scalar": torch.tensor(7.5),
    "f16": torch.tensor([65504.0], dtype=torch.float16),
    "f64": torch.tensor([1 / 3], dtype=torch.float64),
    "i64": torch.arange(-3, 3),
    "u8": torch.arange(5, dtype=torch.uint8),
    "strided": torch.arange(24.0).reshape(4, 6)[::2, 1::2],
    "\u00e9/\n\x1b": torch.ones(1),
}


def written(where: Path, tensors: dict[str, torch.Tensor]) -> tuple[LocalDisk, BaseEntry, Path]:
    where.joinpath("w00000").mkdir(parents=True)
    disk = LocalDisk(str(where))
    parts = [
        (describe(name, tensor), to_bytes(tensor), printed(digest([tensor])[0])) for name, tensor in tensors.items()
    ]
    entry = base.write(disk, "0" * 32, 0, 5, 1, parts, CONTENT)
    return disk, entry, where / names.tensors(0, 5, 1)


def test_the_real_library_reads_every_tensor(tmp_path: Path) -> None:
    _, _, path = written(tmp_path, TENSORS)
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        assert found[name].dtype == plain.dtype
        assert torch.equal(found[name], plain), name


def test_the_file_says_which_step_it_is(tmp_path: Path) -> None:
    _, _, path = written(tmp_path, TENSORS)
    with safetensors.safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt", "everstep": "step 5"}


def test_we_read_every_tensor_back_with_its_type_and_shape(tmp_path: Path) -> None:
    disk, entry, _ = written(tmp_path, TENSORS)
    _, found = load.load(disk, 0, entry)
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_goes_there_and_back(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(64, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.tensor([True, False])
    disk, entry, path = written(tmp_path, {"x": tensor})
    _, found = load.load(disk, 0, entry)
    assert torch.equal(found["x"].view(torch.uint8), tensor.view(torch.uint8))
    assert load_file(path)["x"].numel() == tensor.numel() * (2 if dtype.is_complex else 1)


def test_a_base_without_tensors_is_a_base(tmp_path: Path) -> None:
    disk, entry, path = written(tmp_path, {})
    assert load.load(disk, 0, entry)[1] == load_file(path) == {}
