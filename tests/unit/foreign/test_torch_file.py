"""Files of torch.save: whatever torch can put there in torch's own types is found, and what it cannot be is named."""

import collections
import datetime
import io
import os
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from everstep.errors import Damaged, EverstepError, Unsupported
from everstep.foreign import torch_file
from everstep.foreign.found import Checkpoint, check, verify
from tests.unit.foreign import fixtures


def saved(path: Path, value: object) -> Checkpoint:
    torch.save(value, path)
    checkpoint = torch_file.read(str(path))
    check(checkpoint)
    verify(checkpoint)
    return checkpoint


BASE = torch.arange(60.0)
VIEWS = {
    "contiguous": BASE.view(3, 4, 5),
    "a part of a storage": BASE[7:19].view(3, 4),
    "transposed": BASE.view(6, 10).T,
    "permuted": BASE.view(3, 4, 5).permute(2, 0, 1),
    "a column": BASE.view(6, 10)[:, 3],
    "every second row": BASE.view(6, 10)[::2],
    "inner rows": BASE.view(3, 4, 5)[:, 1:3],
    "expanded": BASE[:3].view(3, 1).expand(3, 4),
    "without axes": BASE[5],
    "without elements": BASE[:0].view(0, 4),
    "axes of one": BASE[:12].view(1, 12, 1),
    "channels last": BASE[:48].view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_is_cut_into_boxes_in_row_major_order(view: torch.Tensor, tmp_path: Path) -> None:
    found = fixtures.tensors(saved(tmp_path / "f.pt", {"x": view}))
    assert torch.equal(found["model/x"], view)


def test_a_view_in_too_many_pieces_is_unsupported_and_says_what_to_do(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(100, 100).T}, tmp_path / "f.pt")
    with pytest.raises(Unsupported, match=r"contiguous"):
        torch_file.read(str(tmp_path / "f.pt"))


DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.complex64: "C64", torch.complex128: "C128", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_has_its_name_and_size(dtype: torch.dtype, tmp_path: Path) -> None:
    (part,) = saved(tmp_path / "f.pt", {"x": torch.zeros(3).to(dtype)}).tensors
    assert (part.tensor.dtype, part.tensor.nbytes) == (DTYPES[dtype], 3 * dtype.itemsize)


def test_parameters_and_tensors_with_attributes_are_tensors(tmp_path: Path) -> None:
    marked = nn.Parameter(torch.arange(3.0))
    marked.tag = "mine"
    found = fixtures.tensors(saved(tmp_path / "f.pt", {"a": nn.Parameter(torch.ones(2)), "b": marked}))
    assert torch.equal(found["model/b"], torch.arange(3.0))
    assert found.keys() == {"model/a", "model/b"}


def test_objects_that_are_not_known_are_listed_and_the_rest_is_kept(tmp_path: Path) -> None:
    value = {"model": {"w": torch.ones(2)}, "when": datetime.timedelta(1), "raw": b"ab", "epoch": 4}
    found = saved(tmp_path / "f.pt", value)
    assert found.objects == {"epoch": 4}
    assert found.unknown == ("when: datetime.timedelta", "raw: bytes of 2")


def test_plain_values_keep_their_form_as_json_has_it(tmp_path: Path) -> None:
    value = {"a": {1: (2, None), "b": {"c": True}}, "d": collections.OrderedDict(e=1.5), "f": [torch.Size([2])]}
    assert saved(tmp_path / "f.pt", value).objects == {
        "a": {"1": [2, None], "b": {"c": True}},
        "d": {"e": 1.5},
        "f": [[2]],
    }


def test_a_tensor_alone_has_a_name(tmp_path: Path) -> None:
    assert [part.tensor.name for part in saved(tmp_path / "f.pt", torch.ones(2)).tensors] == ["model/value"]


class Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def test_a_file_that_would_run_code_is_read_without_running_it(tmp_path: Path) -> None:
    found = saved(tmp_path / "f.pt", {"model": {"w": torch.ones(2)}, "trap": Runs(str(tmp_path / "mark"))})
    assert not (tmp_path / "mark").exists()
    assert found.unknown == ("trap: posix.mkdir",)


def described(pickle: bytes, members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as written:
        for name, content in {"data.pkl": pickle, **members}.items():
            written.writestr(f"a/{name}", content)
    return target.getvalue()


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K%c(K%ct(K%ctNNtR."
LIES = {
    "no bytes": (TENSOR % (0, 4, 1), {}),
    "too few bytes": (TENSOR % (0, 4, 1), {"data/0": bytes(12)}),
    "an offset beyond the storage": (TENSOR % (1, 4, 1), {"data/0": bytes(16)}),
    "a stride beyond the storage": (TENSOR % (0, 3, 2), {"data/0": bytes(16)}),
    "no description": (b".", {"data/0": b""}),
    "a big-endian machine": (b"N.", {"byteorder": b"big"}),
    "a tree without end": (b"]q\x000" + b"(h\x00h\x00lq\x000" * 60 + b"h\x00.", {}),
    "a tensor of many pieces, many times": (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + STORAGE
        + b"K\x00(M\x00\x10K\x01t(K\x00K\x01tNNtRq\x00]("
        + b"h\x00" * 9999
        + b"e.",
        {"data/0": bytes(16)},
    ),
    "a tree that holds itself": (b"]q\x00h\x00a.", {}),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pickle, members", LIES.values(), ids=LIES.keys())
def test_a_description_that_lies_is_refused(pickle: bytes, members: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "f.pt").write_bytes(described(pickle, members))
    with pytest.raises(EverstepError, match=r"f\.pt"):
        torch_file.read(str(tmp_path / "f.pt"))


def test_an_honest_description_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.pt").write_bytes(described(TENSOR % (1, 3, 1), {"data/0": bytes(16)}))
    assert [part.tensor.shape for part in torch_file.read(str(tmp_path / "f.pt")).tensors] == [(3,)]


def test_files_of_old_torch_are_unsupported_and_say_so(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "f.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(Unsupported, match=r"before 1\.6"):
        torch_file.read(str(tmp_path / "f.pt"))


def test_torchscript_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.pt").write_bytes(described(b"N.", {}).replace(b"data.pkl", b"code.pkl"))
    with pytest.raises(Damaged, match=r"no data\.pkl"):
        torch_file.read(str(tmp_path / "f.pt"))


def test_switched_off_checksums_are_noted(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        found = saved(tmp_path / "f.pt", {"a": torch.ones(1)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert any("checksums switched off" in note for note in found.notes)
