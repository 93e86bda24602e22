"""torch.distributed.checkpoint: what `.metadata` leaves out or makes up is found by looking at everything else."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dist_checkpoint
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from everstep.errors import Damaged, Unsupported
from everstep.foreign import dcp
from everstep.foreign.found import check, verify
from tests.unit.foreign import fixtures

KEY = "model.a.weight"


def changed(tmp_path: Path, change: Callable[[Metadata], object]) -> str:
    """The fixture with another `.metadata`."""
    folder = fixtures.copied("dcp", tmp_path)
    index = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301
    change(index)
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    return str(folder)


def drop_chunk(index: Metadata) -> None:
    index.state_dict_metadata[KEY].chunks.pop()
    del index.storage_data[MetadataIndex(KEY, torch.Size([6, 0]))]


def test_a_chunk_that_was_dropped_is_missed(tmp_path: Path) -> None:
    checkpoint = dcp.read(changed(tmp_path, drop_chunk))
    with pytest.raises(Damaged, match=r"35 of 77 elements of 'model/a\.weight' are missing: \[6:11, 0:7\]"):
        check(checkpoint)


LIES: dict[str, tuple[Callable[[Metadata], object], str]] = {
    "a chunk that is not listed": (
        lambda index: index.state_dict_metadata[KEY].chunks.pop(), "has a place but is not listed",
    ),
    "no chunk": (
        lambda index: index.state_dict_metadata[KEY].chunks.clear(), "no chunk of 'model.a.weight'",
    ),
    "a chunk without a place": (
        lambda index: index.storage_data.pop(MetadataIndex(KEY, torch.Size([6, 0]))),
        r"place of .* at \[6, 0\] is missing",
    ),
    "a value without a place": (lambda index: index.storage_data.pop(MetadataIndex("step")), "of the value 'step'"),
    "an entry without a description": (lambda index: index.state_dict_metadata.pop(KEY), "not listed"),
    "another type": (
        lambda index: setattr(index.state_dict_metadata[KEY].properties, "dtype", torch.float64), "different saves",
    ),
    "another chunk shape": (
        lambda index: setattr(index.state_dict_metadata[KEY].chunks[0], "sizes", torch.Size([7, 6])), "different saves",
    ),
    "a place in another chunk": (
        lambda index: setattr(place(index), "offset", place(index).offset + 1), "claim byte|no archive|damaged",
    ),
    "a place beyond the file": (lambda index: setattr(place(index), "offset", 1 << 40), "are expected, the file has"),
    "a negative place": (lambda index: setattr(place(index), "offset", -1), "no range"),
    "a file outside the folder": (
        lambda index: setattr(place(index), "relative_path", "../dcp/__0_0.distcp"), "outside the checkpoint's folder",
    ),
    "an absolute path": (lambda index: setattr(place(index), "relative_path", "/etc/passwd"), "outside the checkpoint"),
    "a name that is not its path": (lambda index: index.planner_data.update(step=("stop",)), "does not lead to its"),
    "an entry without a path": (lambda index: index.planner_data.pop("step"), "no path leads to 'step'"),
    "no description at all": (lambda index: setattr(index, "state_dict_metadata", None), "does not describe"),
}  # fmt: skip


def place(index: Metadata) -> object:
    return index.storage_data[MetadataIndex(KEY, torch.Size([6, 0]))]


@pytest.mark.parametrize("change, said", LIES.values(), ids=LIES.keys())
def test_an_index_that_lies_is_refused(change: Callable[[Metadata], object], said: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, change)
    with pytest.raises(Damaged, match=said):
        dcp.read(folder)


def test_transformed_data_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="transform"):
        dcp.read(changed(tmp_path, lambda index: setattr(place(index), "transform_descriptors", ["zstd"])))


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    folder = fixtures.copied("dcp", tmp_path)
    (folder / "__1_0.distcp").unlink()
    with pytest.raises(Damaged, match=r"__1_0\.distcp: this file of the checkpoint is missing"):
        dcp.read(str(folder))


def test_files_of_an_earlier_larger_world_are_noted(tmp_path: Path) -> None:
    folder = fixtures.copied("dcp", tmp_path)
    (folder / "__7_0.distcp").write_bytes(b"stale")
    assert any("left from another save" in note for note in dcp.read(str(folder)).notes)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_one_process_saves_is_read(tmp_path: Path) -> None:
    state = {
        "w": torch.arange(6.0).view(2, 3), "deep": {"list": [torch.ones(2), 5]}, "empty": torch.empty(0, 3),
        "image": torch.arange(48.0).view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
        "view": torch.arange(12.0).view(3, 4)[:, 1:3], "text": "kept",
    }  # fmt: skip
    dist_checkpoint.save(state, checkpoint_id=tmp_path, no_dist=True)
    checkpoint = dcp.read(str(tmp_path))
    check(checkpoint)
    verify(checkpoint)
    found = fixtures.tensors(checkpoint)
    assert torch.equal(found["model/w"], torch.arange(6.0).view(2, 3))
    assert torch.equal(found["model/view"], torch.arange(12.0).view(3, 4)[:, 1:3])
    assert torch.equal(found["model/image"], torch.arange(48.0).view(2, 3, 2, 4))
    assert found["model/empty"].shape == (0, 3)
    assert torch.equal(found["other/deep.list.0"], torch.ones(2))
    assert checkpoint.objects == {"deep.list.1": 5, "text": "kept"}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_megatron_s_optimizers_are_told_from_its_model(tmp_path: Path) -> None:
    bucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_f.bucket_idx_0.exp_avg"
    tensors = {
        "decoder.w": torch.ones(2), "optimizer.state.exp_avg.decoder.w": torch.ones(3), bucket: torch.ones(4),
        "chained_1.optimizer.state.fp32_param.decoder.v": torch.ones(5),
    }  # fmt: skip
    values = {"rng_state/shard_0_1": b"", "common_state/shard_0_1": [{"iteration": 9, "rng": 3}]}
    planner = DefaultSavePlanner(flatten_state_dict=False)
    dist_checkpoint.save({**tensors, **values}, checkpoint_id=tmp_path, planner=planner, no_dist=True)
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    checkpoint = dcp.read(str(tmp_path))
    assert {part.tensor.name for part in checkpoint.tensors} == {
        "model/decoder.w", "optimizer/exp_avg/decoder.w", "optimizer/fp32_param/decoder.v", f"other/{bucket}",
    }  # fmt: skip
    assert checkpoint.objects == {"iteration": 9, "rng": 3}
    assert any("dp_reshardable" in note for note in checkpoint.notes)


def test_an_unfinished_save_of_megatron_is_refused(tmp_path: Path) -> None:
    folder = fixtures.copied("mcore", tmp_path)
    (folder / "metadata.json").unlink()
    with pytest.raises(Damaged, match="not finished"):
        dcp.read(str(folder))


@pytest.mark.parametrize("text, error", [("{", Damaged), ("[1]", Damaged), ("[" * 99999, Damaged), ("{}", Damaged)])
def test_a_backend_that_is_not_said_is_damaged(text: str, error: type[Exception], tmp_path: Path) -> None:
    folder = fixtures.copied("mcore", tmp_path)
    (folder / "metadata.json").write_text(text)
    with pytest.raises(error, match=r"metadata\.json"):
        dcp.read(str(folder))


def test_another_backend_is_unsupported(tmp_path: Path) -> None:
    folder = fixtures.copied("mcore", tmp_path)
    (folder / "metadata.json").write_text('{"sharded_backend": "zarr", "sharded_backend_version": 1}')
    with pytest.raises(Unsupported, match="zarr"):
        dcp.read(str(folder))
