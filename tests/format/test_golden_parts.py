"""Runs whose tensors are parts of others, written once: every later version reads them, and writes the same layout."""

import json
import math
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import everstep
from everstep.layout import Mesh, Rule, Spec
from everstep.store import document
from everstep.store.base import Index
from everstep.types import Local
from tests.format import make_golden_parts as golden

EXPECTED: dict[str, dict[str, str]] = json.loads((golden.HERE / "expected.json").read_text())
BASES = sorted(golden.HERE.glob("run*/w*/b*.json"))


def index(path: Path) -> Index:
    return document.parse(path.read_bytes(), "base", Index, name=path.name)


def layout_bytes(path: Path) -> bytes:
    """The layout as it stands in the file: the last of what a base says."""
    return path.read_bytes().partition(b'"layout":')[2]


@pytest.mark.parametrize("world", golden.WORLDS)
@pytest.mark.parametrize("step", EXPECTED)
def test_every_step_restores_to_the_digests_of_the_whole_tensors(step: str, world: int) -> None:
    found = everstep.restore(golden.HERE / f"run{world}", int(step))
    assert golden.digests(found.tensors) == EXPECTED[step]


@pytest.mark.parametrize("world", golden.WORLDS)
def test_another_layout_goes_on_from_it(world: int, tmp_path: Path) -> None:
    """By one rank that holds whole tensors, and no padding."""
    shutil.copytree(golden.HERE / f"run{world}", tmp_path / "run")
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in golden.LOGICAL.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    whole = Spec(Mesh(), (Rule(".*"),), shapes=golden.LOGICAL)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer, spec=whole) as run:
        assert run.resume() == golden.STEPS
    held = {f"model/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        held[f"optimizer/main/{name}/momentum_buffer"] = optimizer.state[parameter]["momentum_buffer"]
    assert golden.digests(held) == EXPECTED[str(golden.STEPS)]


@pytest.mark.parametrize("path", BASES, ids=lambda path: f"{path.parts[-3]}-{path.parts[-2]}-{path.stem}")
def test_what_a_spec_says_today_is_what_the_golden_writer_wrote(path: Path) -> None:
    world, rank = int(path.parts[-3].removeprefix("run")), int(path.parts[-2].removeprefix("w"))
    held = golden.spec(world).locals(golden.LOGICAL, rank)
    assert index(path).content.layout == held
    assert layout_bytes(path) == msgspec.json.encode(held) + b"}}}"


def test_today_s_writer_writes_the_golden_layout(tmp_path: Path) -> None:
    assert golden.train(tmp_path / "run", 0, 1, golden.STEPS) == golden.STEPS
    for path in (golden.HERE / "run1" / "w00000").glob("b*.json"):
        mine = tmp_path / "run" / "w00000" / path.name
        assert layout_bytes(mine) == layout_bytes(path)
        assert [(one.tensor, one.digest) for one in index(mine).tensors if one.tensor.name.startswith("model/")] == [
            (one.tensor, one.digest) for one in index(path).tensors if one.tensor.name.startswith("model/")
        ]


def test_the_golden_runs_have_every_kind_of_part() -> None:
    """Several pieces in one tensor, padding at the end, a flat range that is several boxes; more than one base."""
    held = [local for path in BASES for local in index(path).content.layout.values()]
    assert {local.logical for local in held} == set(golden.LOGICAL)
    assert any(len(local.pieces) == 3 for local in held if local.logical == "qkv")
    padded = [local for local in held if volume(local) < math.prod(local.shape)]
    assert {local.logical for local in padded} == {"embed", "flat"}
    assert any(len(local.pieces) > 1 for local in held if local.logical == "flat")
    assert len(BASES) == 2 * sum(golden.WORLDS)
    assert sum(path.stat().st_size for path in golden.HERE.rglob("*")) < 200_000


def volume(local: Local) -> int:
    return sum(math.prod(piece.box.shape) for piece in local.pieces)
