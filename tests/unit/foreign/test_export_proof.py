"""Reading back finds what does not match, and the writer of torch's files writes what torch reads."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.capture.tensors import DTYPES
from everstep.errors import Damaged, Unsupported
from everstep.foreign import torch_file
from everstep.foreign.depart import trees
from everstep.foreign.depart.depart import depart
from everstep.foreign.depart.proof import prove
from everstep.foreign.depart.state import Group, Optimizer, State, expected
from everstep.foreign.found import check, verify


def state(**changes: Any) -> State:
    given = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)} | changes
    held = {"momentum_buffer": torch.ones(2, 3)}
    groups = [Group(("w",), {"lr": 0.1, "momentum": 0.9}), Group(("b",), {"lr": 0.2, "momentum": 0.9})]
    return State(7, given, optimizers={"main": Optimizer("torch.optim.sgd.SGD", groups, {"w": held})})


def proved(path: Path, wanted: State, form: str = "torch") -> None:
    tensors = expected(wanted, aliases=True, optimizer=form == "torch")
    prove(str(path), tensors, lambda _name, tensor: tensor, wanted if form == "torch" else None)


OTHERS = {
    "another value": state(b=torch.tensor([1.0, 1.0, 2.0])),
    "another sign of zero": state(w=torch.tensor([[-0.0, 1, 2], [3, 4, 5]])),
    "another type": state(b=torch.ones(3, dtype=torch.float64)),
    "another shape": state(b=torch.ones(3, 1)),
    "a tensor more": state(c=torch.ones(1)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_difference_is_found(case: str, tmp_path: Path) -> None:
    for form in ("torch", "safetensors"):
        depart(state(), str(tmp_path / form), form)
        proved(tmp_path / form, state(), form)
        with pytest.raises(Damaged, match="does not read back"):
            proved(tmp_path / form, OTHERS[case], form)


def test_a_tensor_that_nobody_wrote_is_found(tmp_path: Path) -> None:
    depart(OTHERS["a tensor more"], str(tmp_path / "c.pt"), "torch")
    with pytest.raises(Damaged, match="never written"):
        proved(tmp_path / "c.pt", state())


def test_a_hyper_parameter_that_differs_is_found(tmp_path: Path) -> None:
    depart(state(), str(tmp_path / "c.pt"), "torch")
    wanted = state()
    wanted.optimizers["main"].groups[1].hyper["lr"] = 0.3  # type: ignore[index]
    with pytest.raises(Damaged, match="'lr' of param group 1"):
        proved(tmp_path / "c.pt", wanted)


def test_a_flipped_bit_is_found_where_the_format_has_no_checksum(tmp_path: Path) -> None:
    depart(state(), str(tmp_path / "m"), "safetensors")
    content = bytearray((tmp_path / "m").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(Damaged, match="does not read back"):
        proved(tmp_path / "m", state(), "safetensors")


def written(tree: Any, path: Path) -> Path:
    path.write_bytes(b"".join(trees.pieces(tree, "tree")))
    return path


VALUES: list[Any] = [
    None, True, False, 0, -1, 2**31 - 1, -(2**31), 2**31, 2**63, -(2**200), 0.1, math.inf, -0.0, "", "text",
    "\u00fc\U0001f600", [], [1, [2, "x"]], (), (1, (2.5, None)), {}, {"a": {1: [True]}, 2: ()}, torch.Size([2, 3]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_torch_reads_every_value(value: Any, tmp_path: Path) -> None:
    found = torch.load(written({"value": value}, tmp_path / "f"), weights_only=True)["value"]
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_torch_reads_tensors_of_every_type(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2, (count,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    file = written({"t": tensor, "u": [tensor.clone()]}, tmp_path / "f")
    found = torch.load(file, weights_only=True)
    for one in (found["t"], found["u"][0]):
        assert (one.dtype, one.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(one.reshape(-1).view(torch.uint8), raw) if count else not one.numel()
    checkpoint = torch_file.read(str(file))
    check(checkpoint)
    verify(checkpoint)


def test_strided_tensors_are_written_in_order(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4).T[1:]
    assert torch.equal(torch.load(written(tensor, tmp_path / "f"), weights_only=True), tensor)


def test_two_views_of_one_memory_stay_two(tmp_path: Path) -> None:
    one = torch.arange(9.0).reshape(3, 3)
    found = torch.load(written([one, one.T, one.view(torch.int32)], tmp_path / "f"), weights_only=True)
    assert torch.equal(found[0], one)
    assert torch.equal(found[1], one.T)
    assert torch.equal(found[2], one.view(torch.int32))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j])
def test_what_would_need_pickle_is_refused_by_its_place(value: Any) -> None:
    with pytest.raises(Unsupported, match=r"tree/a/0"):
        list(trees.pieces({"a": [value]}, "tree"))


def test_a_tree_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Unsupported, match="deeper"):
        list(trees.pieces(endless, "tree"))
