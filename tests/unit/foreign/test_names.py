"""Nested state dicts of every fashion come to the same names."""

import pytest

from everstep.errors import Damaged, Unsupported
from everstep.foreign import names as naming
from everstep.foreign.found import Place, Stored
from everstep.foreign.names import Arranged, grown
from everstep.foreign.plain import Tree
from everstep.types import whole


def tensor(at: int) -> Stored:
    return Stored("U8", (1,), ((whole((1,)), Place("f", at, 1)),))


A, B, C, D = map(tensor, range(4))
GROUPS: Tree = [{"params": [0, 1], "lr": 0.1}]
STATE: Tree = {0: {"exp_avg": C, "step": 7}, 1: {"exp_avg": D}}
NAMED: Tree = [{"params": [0, 1], "param_names": ["w", "v"], "lr": 0.1}]


def arranged(tree: Tree) -> Arranged:
    return naming.arranged(tree, "f")


FASHIONS: dict[str, tuple[Tree, set[str]]] = {
    "a bare state dict": ({"l.w": A, "l.b": B}, {"model/l.w", "model/l.b"}),
    "below a usual key": ({"model": {"l.w": A}, "rng": B}, {"model/l.w", "other/rng"}),
    "in an application's state": ({"app": {"model": {"w": A}, "x": [B]}}, {"model/w", "other/app.x.0"}),
    "lightning": ({"state_dict": {"w": A}, "epoch": 3}, {"model/w"}),
    "nested without a usual key": ({"encoder": {"w": A}}, {"model/encoder.w"}),
    "bare, with other things deeper": ({"w": A, "loader": {"state": B}}, {"model/w", "other/loader.state"}),
    "numbered parameters": (
        {"model": {"w": A}, "opt": {"state": STATE, "param_groups": GROUPS}},
        {"model/w", "optimizer/exp_avg/0", "optimizer/exp_avg/1"},
    ),
    "named parameters": (
        {"model": {"w": A}, "opt": {"state": STATE, "param_groups": NAMED}},
        {"model/w", "optimizer/exp_avg/w", "optimizer/exp_avg/v"},
    ),
    "an optimizer alone": ({"state": STATE, "param_groups": NAMED}, {"optimizer/exp_avg/w", "optimizer/exp_avg/v"}),
    "flattened": (
        {"w": A, "optim": {"state.l.w.exp_avg": C, "param_groups.l.w.lr": 0.1}},
        {"model/w", "optimizer/exp_avg/l.w"},
    ),
    "two optimizers": (
        {"o": [{"state": {0: {"m": C}}, "param_groups": []}, {"state": {0: {"m": D}}, "param_groups": []}]},
        {"optimizer/m/0", "optimizer.1/m/0"},
    ),
}


@pytest.mark.parametrize("tree, names", FASHIONS.values(), ids=FASHIONS.keys())
def test_every_fashion_of_nesting_is_named(tree: Tree, names: set[str]) -> None:
    assert set(arranged(tree).tensors) == names


def test_where_no_model_is_no_tensor_is_taken_for_one() -> None:
    assert set(naming.arranged({"rng": A, "x": {"y": B}}, "f", has_model=False).tensors) == {"other/rng", "other/x.y"}


def test_states_that_are_numbers_are_objects() -> None:
    found = arranged({"state": STATE, "param_groups": NAMED})
    assert found.objects["optimizer/step/w"] == 7


def test_groups_list_their_parameters_by_name() -> None:
    assert arranged({"state": STATE, "param_groups": NAMED}).objects["optimizer/param_groups"] == [
        {"params": ["w", "v"], "lr": 0.1}
    ]


def test_numbers_without_names_are_noted() -> None:
    assert any("no names" in note for note in arranged({"state": STATE, "param_groups": GROUPS}).notes)
    assert not arranged({"state": STATE, "param_groups": NAMED}).notes


def test_flattened_groups_are_groups_again() -> None:
    flat: Tree = {
        "state.w.m": A, "param_groups.w.lr": 0.1, "param_groups.v.lr": 0.2, "param_groups.u.lr": 0.1,
    }  # fmt: skip
    assert arranged(flat).objects["optimizer/param_groups"] == [
        {"params": ["w", "u"], "lr": 0.1}, {"params": ["v"], "lr": 0.2},
    ]  # fmt: skip


def test_hyper_parameters_that_are_tensors_are_found_by_group() -> None:
    found = arranged({"state": {}, "param_groups": [{"params": [], "lr": A, "wd": 0.1}]})
    assert found.objects["optimizer/param_groups"] == [{"params": [], "wd": 0.1}]
    assert set(found.tensors) == {"other/optimizer.param_groups.0.lr"}


def test_equal_bytes_under_two_names_are_one_tensor_and_an_alias() -> None:
    found = arranged({"embed": A, "head": A, "other": B})
    assert (set(found.tensors), found.aliases) == ({"model/embed", "model/other"}, {"model/head": "model/embed"})


def test_two_things_of_one_name_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"both be called 'model/a\.b'"):
        arranged({"model": {"a.b": A, "a": {"b": B}}})


def test_a_tree_grows_from_paths() -> None:
    assert grown({("a", "b"): 1, ("a", 0): 2, ("c",): 3}, "f") == {"a": {"b": 1, 0: 2}, "c": 3}


@pytest.mark.parametrize("paths", [[("a",), ("a", "b")], [("a", "b"), ("a",)], [()]])
def test_paths_that_contradict_each_other_are_damaged(paths: list[tuple[str, ...]]) -> None:
    with pytest.raises(Damaged):
        grown(dict.fromkeys(paths, 1), "f")
