"""ZeRO folders of any number of ranks give the same logical tensors; a rank that is missing or foreign is named."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.errors import Damaged, Unsupported
from everstep.foreign import deepspeed, universal
from everstep.foreign.found import check, verify
from tests.unit.foreign import fixtures
from tests.unit.foreign.zero_folders import Groups, write_stage_1, write_stage_3

GROUPS: Groups = [{"a": (3, 5), "b": (7,)}, {"c": (2, 3, 4), "d": ()}]
shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)
some_groups = st.lists(st.lists(shapes, min_size=1, max_size=4), min_size=1, max_size=2).map(
    lambda groups: [{f"p{g}.{at}": shape for at, shape in enumerate(group)} for g, group in enumerate(groups)]
)


def expect(folder: Path, values: dict[str, dict[str, torch.Tensor]], rest: dict[str, torch.Tensor]) -> None:
    checkpoint = deepspeed.read(str(folder))
    check(checkpoint)
    verify(checkpoint)
    wanted = {f"model/{name}": value for name, value in (values["fp32"] | rest).items()}
    for state in ("exp_avg", "exp_avg_sq"):
        wanted |= {f"optimizer/{state}/{name}": value for name, value in values[state].items()}
    wanted |= {f"optimizer/step/{name}": torch.tensor(4.0) for name in values["fp32"]}
    found = fixtures.tensors(checkpoint)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@given(some_groups, st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_flat_buffers_of_any_world_are_put_together(
    tmp_path_factory: pytest.TempPathFactory, groups: Groups, world: int
) -> None:
    folder = tmp_path_factory.mktemp("zero") / "tag"
    expect(folder, write_stage_1(folder, groups, world, {"buffer": torch.ones(2)}), {"buffer": torch.ones(2)})


@given(some_groups, st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_cut_parameters_of_any_world_are_put_together(
    tmp_path_factory: pytest.TempPathFactory, groups: Groups, world: int
) -> None:
    folder = tmp_path_factory.mktemp("zero") / "tag"
    frozen, buffers = {"frozen": torch.arange(7.0)}, {"buffer": torch.ones(2)}
    expect(folder, write_stage_3(folder, groups, world, frozen, buffers), frozen | buffers)


def test_shared_parameters_are_aliases(tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 2, {"head": torch.ones(7)}, shared_params={"head": "b"})
    checkpoint = deepspeed.read(str(tmp_path / "tag"))
    assert checkpoint.aliases == {"model/head": "model/b"}
    assert "model/head" not in {part.tensor.name for part in checkpoint.tensors}


def test_shared_parameters_that_are_not_listed_are_known_by_their_bytes(tmp_path: Path) -> None:
    copy = torch.ones(7, dtype=torch.bfloat16)
    write_stage_1(tmp_path / "tag", GROUPS, 2, {"b": copy, "head": copy}, shared_params=None)
    assert deepspeed.read(str(tmp_path / "tag")).aliases == {"model/head": "model/b"}


def test_the_newest_tag_is_read(tmp_path: Path) -> None:
    write_stage_1(tmp_path / "global_step5", GROUPS, 2, {})
    (tmp_path / "latest").write_text("global_step5\n")
    assert deepspeed.read(str(tmp_path)).objects["iteration"] == 5


@pytest.mark.parametrize("tag", ["../elsewhere", "/etc", "..", "", "a/b"])
def test_a_tag_outside_the_folder_is_refused(tag: str, tmp_path: Path) -> None:
    (tmp_path / "latest").write_text(tag)
    with pytest.raises(Damaged, match="outside the checkpoint's folder"):
        deepspeed.read(str(tmp_path))


@pytest.mark.parametrize("stage", [1, 3])
def test_files_of_a_larger_world_are_left_out_and_noted(stage: int, tmp_path: Path) -> None:
    for world in (4, 2):
        if stage == 1:
            write_stage_1(tmp_path / str(world), GROUPS, world, {})
        else:
            write_stage_3(tmp_path / str(world), GROUPS, world, {}, {})
    for file in (tmp_path / "4").glob("zero_pp_rank_[23]*"):
        shutil.copy(file, tmp_path / "2")
    checkpoint = deepspeed.read(str(tmp_path / "2"))
    check(checkpoint)
    assert any("left from another save" in note for note in checkpoint.notes)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_missing_rank_is_named(rank: int, tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 3, {})
    (tmp_path / "tag" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(Damaged, match=rf"ranks \[{rank}\] of 3 are missing"):
        deepspeed.read(str(tmp_path / "tag"))


def test_a_rank_of_another_step_is_found(tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 2, {})
    path = tmp_path / "tag" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    tree = torch.load(path)
    tree["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"] += 1
    torch.save(tree, path)
    with pytest.raises(Damaged, match=r"step of '[ab]' differs from the ranks before"):
        deepspeed.read(str(tmp_path / "tag"))


def test_a_rank_of_another_layout_is_found(tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 2, {})
    write_stage_1(tmp_path / "other", GROUPS, 3, {})
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(tmp_path / "other" / name, tmp_path / "tag" / name)
    with pytest.raises(Damaged, match="of another world"):
        deepspeed.read(str(tmp_path / "tag"))


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 2, {})
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(tmp_path / "tag" / name, tmp_path / "tag" / f"bf16_{name}")
    with pytest.raises(Damaged, match="a second file of rank 1"):
        deepspeed.read(str(tmp_path / "tag"))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("world", [0, 1 << 57])
def test_a_world_that_cannot_be_is_refused(world: int, tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 1, {}, dp_world_size=world)
    with pytest.raises(Damaged, match=r"no ranks|are missing"):
        deepspeed.read(str(tmp_path / "tag"))


NOT_READ = ["mp_rank_01_model_states.pt", "layer_03-model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt"]


@pytest.mark.parametrize("name", NOT_READ)
def test_other_parallelism_is_unsupported_and_named(name: str, tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 1, {})
    (tmp_path / "tag" / name).write_bytes(b"")
    with pytest.raises(Unsupported, match=f"{name}.*ds_to_universal"):
        deepspeed.read(str(tmp_path / "tag"))


def test_without_zero_the_one_file_holds_everything(tmp_path: Path) -> None:
    module, state = {"w": torch.ones(2)}, {0: {"exp_avg": torch.zeros(2)}}
    tree = {"module": module, "optimizer": {"state": state, "param_groups": [{"params": [0], "lr": 0.1}]}}
    torch.save({**tree, "param_shapes": None, "dp_world_size": 1}, tmp_path / "mp_rank_00_model_states.pt")
    checkpoint = deepspeed.read(str(tmp_path))
    assert {part.tensor.name for part in checkpoint.tensors} == {"model/w", "optimizer/exp_avg/0"}


def test_weights_of_zero_without_its_optimizer_files_are_refused(tmp_path: Path) -> None:
    write_stage_1(tmp_path / "tag", GROUPS, 1, {})
    (tmp_path / "tag" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(Damaged, match="none of its optimizer files"):
        deepspeed.read(str(tmp_path / "tag"))


@pytest.mark.parametrize("name", ["zero1_universal", "zero3_universal"])
def test_a_state_that_the_converter_lost_is_named(name: str, tmp_path: Path) -> None:
    folder = fixtures.copied(name, tmp_path)
    (folder / "zero" / "a.bias" / "exp_avg.pt").unlink()
    with pytest.raises(Damaged, match=r"'exp_avg' of 'a\.bias' is missing"):
        universal.read(str(folder))


def test_a_flat_tensor_of_another_length_is_refused(tmp_path: Path) -> None:
    folder = fixtures.copied("zero3_universal", tmp_path)
    shutil.copy(folder / "zero" / "b.weight" / "fp32.pt", folder / "zero" / "a.weight" / "fp32.pt")
    with pytest.raises(Damaged, match=r"33 elements, the model's shape is \[11, 7\]"):
        universal.read(str(folder))
