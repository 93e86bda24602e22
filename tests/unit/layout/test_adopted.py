"""Layouts that others wrote down say what those others do: compared with torch itself, and with files of DeepSpeed."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from everstep.capture.shards import held_of
from everstep.errors import Misdescribed
from everstep.foreign import deepspeed, trees
from everstep.layout import Gather, Mesh, Rule, Spec, Unique
from everstep.types import Box, Local, Piece, boxed
from tests import worlds

FIXTURES = Path(__file__).parents[2] / "fixtures" / "foreign"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(7, 10)
        self.two = torch.nn.Linear(10, 5, bias=False)
        self.tied = self.two


def on_mesh(kind: str) -> Net:
    """The model of one rank, with nobody at the other end of its mesh."""
    net = Net()
    if kind == "fsdp":
        fully_shard(net, mesh=init_device_mesh("cpu", (4,)))
    elif kind == "hsdp":
        fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("rep", "dp")))
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with torch.no_grad():
            weight = DTensor.from_local(net.one.weight[:5], mesh["tp"], [Shard(0)], run_check=False)
            net.one.weight = torch.nn.Parameter(weight)
            net.one.bias = torch.nn.Parameter(distribute_tensor(net.one.bias.detach(), mesh["tp"], [Replicate()]))
            net.two.weight = torch.nn.Parameter(distribute_tensor(net.two.weight.detach(), mesh["tp"], [Shard(1)]))
        fully_shard(net, mesh=mesh["dp"])
    return net


def compare(rank: int) -> None:
    """One process for each rank: torch remembers where on a mesh it was."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    for kind in ("fsdp", "hsdp", "2d"):
        net = on_mesh(kind)
        spec = Spec.from_dtensor(net)
        assert spec.mesh.size == 4
        told = spec.locals(spec.shapes, rank)
        own = {name: held_of(name, parameter, {}) for name, parameter in net.named_parameters()}
        assert {name: held.pieces for name, held in told.items()} == {name: held.pieces for name, held in own.items()}
        assert {name: held.shape for name, held in told.items()} == {name: held.shape for name, held in own.items()}
        assert dict(spec.aliases) == {"tied.weight": "two.weight"}
    dist.destroy_process_group()


def test_the_spec_of_dtensors_says_what_torch_itself_does() -> None:
    worlds.spawn(compare, (), 4)


def test_a_model_without_dtensors_has_no_mesh() -> None:
    with pytest.raises(Misdescribed, match="0 meshes"):
        Spec.from_dtensor(Net())


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_the_spec_of_zero_says_where_deepspeed_put_its_fragments(stage: str) -> None:
    folder = FIXTURES / stage / "tag"
    shapes = deepspeed.models(str(folder)).trained
    files = [deepspeed.loaded(str(path)) for path in sorted(folder.glob("*zero_pp_rank_*_optim_states.pt"))]
    states = [trees.at(file.tree, file.path, "optimizer_state_dict") for file in files]
    said = [[trees.node(state, "", "param_slice_mappings", group) for group in (0, 1)] for state in states]
    groups = [{str(name): shapes[str(name)] for rank in said for name in rank[group]} for group in (0, 1)]
    spec = Spec.from_deepspeed(groups, stage=int(stage[-1]), ranks=len(files))
    assert len(files) == 2
    for rank, mappings in enumerate(said):
        told = {
            name: (min(piece.base for piece in held.pieces), sum(_size(piece) for piece in held.pieces))
            for name, held in spec.locals(spec.shapes, rank).items() if held.pieces
        }  # fmt: skip
        written = {
            str(name): (trees.count(where, "", "start"), trees.count(where, "", "numel"))
            for mapping in mappings for name, where in mapping.items()
        }  # fmt: skip
        assert told == written


def _size(piece: Piece) -> int:
    size = 1
    for extent in piece.box.shape:
        size *= extent
    return size


def sharded(**told: Any) -> Any:
    return SimpleNamespace(prepend_axis_num=0, flattened_range=None, **told)


def test_megatron_names_boxes_of_logical_tensors() -> None:
    plain = sharded(key="w", global_shape=(8, 6), global_offset=(4, 0), local_shape=(4, 6))
    layer = sharded(key="layers.w", global_shape=(12, 4, 6), global_offset=(5, 0, 3), local_shape=(4, 3))
    layer.prepend_axis_num = 1
    flat = sharded(key="w", global_shape=(8, 6), global_offset=(4, 0), local_shape=(4, 6))
    flat.flattened_range = slice(3, 15)
    padded = sharded(key="v", global_shape=(10,), global_offset=(8,), local_shape=(4,))
    other = SimpleNamespace(key="not a tensor")
    found = Spec.from_megatron({"a": plain, "b": layer, "c": flat, "d": padded, "e": other})  # type: ignore[dict-item]
    assert set(found) == {"a", "b", "c", "d"}
    assert found["a"] == boxed("w", (8, 6), Box((4, 0), (8, 6)))
    assert found["b"].shape == (4, 3)
    assert found["b"].pieces == (Piece(Box((5, 0, 3), (6, 4, 6)), 0, (0, 3, 1)),)
    assert found["c"].shape == (12,)
    assert [piece.box for piece in found["c"].pieces] == [
        Box((4, 3), (5, 6)), Box((5, 0), (6, 6)), Box((6, 0), (7, 3)),
    ]  # fmt: skip
    assert found["d"].shape == (4,)
    assert found["d"].pieces == (Piece(Box((8,), (10,)), 0, (1,)),)
    assert all(held.fault() is None for held in found.values())


def test_what_is_found_by_probing_is_what_the_words_say() -> None:
    """Interleaved halves of the rows: the second rank's are turned round."""
    mesh = Mesh((("tp", 2),))

    def shard(whole: torch.Tensor, at: Mapping[str, int]) -> torch.Tensor | None:
        if whole.dim() == 1:
            return whole if at["tp"] == 0 else None
        return whole[at["tp"] :: 2].contiguous()

    found = Spec.probe(shard, {"w": (6, 4), "b": (5,)}, mesh)
    rows = Gather("tp", 0, 1, ((0, 2, 4), (1, 3, 5)))
    spec = Spec(mesh, (Rule("w", (rows,)), Rule("b", (Unique("tp"),))), shapes={"w": (6, 4), "b": (5,)})
    for rank in range(2):
        told = spec.locals(spec.shapes, rank)
        assert told.keys() == found[rank].keys()
        for name, held in told.items():
            assert held.shape == found[rank][name].shape
            assert _elements(held) == _elements(found[rank][name])


def _elements(held: Local) -> dict[int, tuple[int, ...]]:
    """Of each place in a local tensor, the index in the whole."""
    return {
        piece.base + sum(at * step for at, step in zip(index, piece.strides, strict=True)): tuple(
            low + at for low, at in zip(piece.box.low, index, strict=True)
        )
        for piece in held.pieces for index in itertools.product(*map(range, piece.box.shape))
    }  # fmt: skip
