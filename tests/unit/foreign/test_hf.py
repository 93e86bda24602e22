"""safetensors: every check that the format asks for, by literal bytes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from everstep.errors import Damaged, Unsupported
from everstep.foreign import hf
from everstep.foreign.found import check
from tests.unit.foreign import fixtures

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def packed(header: object, buffer: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + buffer


def test_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(packed({"w": F32, "__metadata__": {"format": "pt"}}, bytes(8)))
    (part,) = hf.read(str(tmp_path / "f.safetensors")).tensors
    assert (part.tensor.name, part.tensor.shape, part.place.nbytes) == ("model/w", (2,), 8)


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    written = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(5), "c": torch.empty(0, 2)}
    save_file(written, tmp_path / "model.safetensors")
    checkpoint = hf.read(str(tmp_path))
    check(checkpoint)
    found = fixtures.tensors(checkpoint)
    assert all(torch.equal(found[f"model/{name}"], tensor) for name, tensor in written.items())


LIES = {
    "shorter than its length": b"\x00",
    "a header beyond the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "a header of nothing": packed(b"", b""),
    "no json": packed(b"{]", b""),
    "no object": packed([1], b""),
    "deep": packed(b"[" * 200_000, b""),
    "a hole at the start": packed({"w": {**F32, "data_offsets": [4, 12]}}, bytes(12)),
    "a hole at the end": packed({"w": F32}, bytes(12)),
    "a buffer cut short": packed({"w": F32}, bytes(7)),
    "an overlap": packed({"w": F32, "v": {**F32, "data_offsets": [4, 12]}}, bytes(12)),
    "a size that does not fit": packed({"w": {**F32, "shape": [3]}}, bytes(8)),
    "a negative size": packed({"w": {**F32, "shape": [-2, -1]}}, bytes(8)),
    "a size that is no number": packed({"w": {**F32, "shape": ["2"]}}, bytes(8)),
    "a range that ends before it begins": packed({"w": {**F32, "data_offsets": [8, 0]}}, bytes(8)),
    "no range": packed({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "a name twice": packed(b'{"w":%s,"w":%s}' % ((json.dumps(F32).encode(),) * 2), bytes(8)),
    "texts that are none": packed({"w": F32, "__metadata__": {"a": 1}}, bytes(8)),
    "huge sizes": packed({"w": {**F32, "shape": [1 << 40, 1 << 40]}}, bytes(8)),
}


@pytest.mark.parametrize("content", LIES.values(), ids=LIES.keys())
def test_a_header_that_lies_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(content)
    with pytest.raises(Damaged, match=r"f\.safetensors"):
        hf.read(str(tmp_path / "f.safetensors"))


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "C128", "nonsense", None])
def test_an_element_type_that_is_not_known_is_unsupported(dtype: str | None, tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(packed({"w": {**F32, "dtype": dtype}}, bytes(8)))
    with pytest.raises(Unsupported, match="element type"):
        hf.read(str(tmp_path / "f.safetensors"))


def indexed(tmp_path: Path, index: object) -> str:
    folder = fixtures.copied("hf", tmp_path)
    (folder / hf.INDEX).write_text(json.dumps(index))
    return str(folder)


def index() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((fixtures.FOLDER / "hf" / hf.INDEX).read_text())
    return found


def test_a_tensor_that_the_index_makes_up_is_missed(tmp_path: Path) -> None:
    said = index()
    said["weight_map"]["new"] = "model-00001-of-00002.safetensors"
    with pytest.raises(Damaged, match="'new' is missing"):
        hf.read(indexed(tmp_path, said))


def test_a_tensor_that_the_index_leaves_out_is_found(tmp_path: Path) -> None:
    said = index()
    del said["weight_map"]["b.bias"]
    with pytest.raises(Damaged, match=r"does not list 'b\.bias'"):
        hf.read(indexed(tmp_path, said))


@pytest.mark.parametrize("name", ["../hf/model-00001-of-00002.safetensors", "/etc/passwd", "", "."])
def test_an_index_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    said = index()
    said["weight_map"]["b.bias"] = name
    with pytest.raises(Damaged, match="outside the checkpoint's folder"):
        hf.read(indexed(tmp_path, said))


@pytest.mark.parametrize(
    "said", [[], {}, {"weight_map": 3}, {"weight_map": {"a": 1}}, {"weight_map": {}, "metadata": 1}]
)
def test_an_index_that_is_none_is_damaged(said: object, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"index\.json"):
        hf.read(indexed(tmp_path, said))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = fixtures.copied("hf", tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Damaged, match=r"model-00002-of-00002\.safetensors: this file of the checkpoint is missing"):
        hf.read(str(folder))


def test_links_are_followed_as_in_a_cache_of_models(tmp_path: Path) -> None:
    folder = fixtures.copied("hf", tmp_path)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.rename(tmp_path / "blob")
    shard.symlink_to(tmp_path / "blob")
    check(hf.read(str(folder)))


def test_unconsolidated_shards_of_dcp_are_unsupported(tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(packed({"w": F32, "__metadata__": {"DCP_SHARDING_INFO": "{}"}}, bytes(8)))
    with pytest.raises(Unsupported, match="not consolidated"):
        hf.read(str(tmp_path))


def test_a_format_without_checksums_says_so() -> None:
    assert any("no checksums" in note for note in hf.read(fixtures.path("hf")).notes)
