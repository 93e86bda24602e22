"""Ranks that train apart, each with values of its own: as many get theirs back, others get one out of all of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import everstep
from everstep.cli.main import cli
from everstep.errors import Misdescribed, Unsupported
from everstep.layout import Flat, Mesh, Partial, Replicate, Rule, Shard, Spec
from tests import worlds

STEPS = 6
SHAPES = {"weight": (6, 4), "bias": (6,), "frozen": (3,)}
HOW = {"weight": "mean", "bias": "sum"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6))
        self.frozen = nn.Parameter(torch.arange(3.0), requires_grad=False)


class Program:
    """Local training: every rank has data of its own, and nobody averages."""

    def __init__(self, rank: int, world: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model, self.rank = Model(), rank
        self.optimizer = torch.optim.AdamW([self.model.weight, self.model.bias], lr=0.05)
        rules = tuple(Rule(name, (Partial("dp", how),)) for name, how in HOW.items())  # type: ignore[arg-type]
        self.spec = Spec(Mesh((("dp", world),)), (*rules, Rule("frozen", (Replicate("dp"),))), shapes=SHAPES)

    def step(self, at: int) -> None:
        data = torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * at + self.rank))
        (data @ self.model.weight.T + self.model.bias).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, torch.Tensor]:
        found = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            found |= {f"{name}/{key}": value.clone() for key, value in self.optimizer.state.get(parameter, {}).items()}
        return found


def opened(path: Path, program: Program, **more: Any) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, spec=program.spec,
        settings=everstep.Settings(buffer_bytes_max=8 << 20, **more),
    )  # fmt: skip


def trained(rank: int, home: Path) -> None:
    worlds.met(rank, 3, home, "trained")
    program = Program(rank, 3, seed=rank)
    with opened(home / "run", program) as run:
        run.resume()
        for at in range(STEPS):
            program.step(at)
            run.commit()
        run.wait(timeout=60)
    torch.save(program.state(), home / f"{rank}.pt")
    dist.destroy_process_group()


def expected(home: Path) -> dict[str, torch.Tensor]:
    """One state out of three, as its definition says."""
    states = [torch.load(home / f"{rank}.pt") for rank in range(3)]
    found = {}
    for name, first in states[0].items():
        how = HOW.get(name.split("/")[0])
        if how is None or name.endswith("/step"):
            found[name] = first
        else:
            total = sum(state[name].double() for state in states)
            found[name] = (total / 3 if how == "mean" else total).float()
    return found


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("partial")
    worlds.spawn(trained, (home,), 3)
    return home


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> Path:
    return shutil.copytree(home, tmp_path / "kept")


def again(rank: int, home: Path) -> None:
    worlds.met(rank, 3, home, "again")
    program, whole = Program(rank, 3, seed=9), Program(rank, 3, seed=rank)
    for at in range(STEPS + 2):
        whole.step(at)
    with opened(home / "run", program) as run:
        assert run.resume() == STEPS
        assert same(program.state(), torch.load(home / f"{rank}.pt"))
        for at in range(STEPS, STEPS + 2):
            program.step(at)
            run.commit()
        run.wait(timeout=60)
    assert same(program.state(), whole.state())
    dist.destroy_process_group()


def test_as_many_ranks_get_their_own_back(kept: Path) -> None:
    worlds.spawn(again, (kept,), 3)


def fewer(rank: int, home: Path) -> None:
    worlds.met(rank, 2, home, "fewer")
    program = Program(rank, 2, seed=9)
    with opened(home / "run", program) as run:
        assert run.resume() == STEPS
        assert same(program.state(), expected(home))
        assert run.ledger is not None
        origins = {item.name: item.origin for item in run.ledger if item.kind == "parameter"}
        assert origins["weight"].startswith("mean of 3 versions: writer 0")
        assert origins["bias"].startswith("sum of 3 versions")
        program.step(STEPS)
        run.commit()
        run.wait(timeout=60)
    own = program.state()
    program = Program(rank, 2, seed=10)
    with opened(home / "run", program) as run:
        assert run.resume() == STEPS + 1
        assert same(program.state(), own)
    dist.destroy_process_group()


def test_others_get_one_out_of_all_of_them_and_go_on_apart(kept: Path) -> None:
    worlds.spawn(fewer, (kept,), 2)


def sharded(rank: int, home: Path) -> None:
    worlds.met(rank, 2, home, "sharded")
    program = Program(rank, 2, seed=9)
    fully_shard(program.model)
    program.spec = None  # type: ignore[assignment]
    program.optimizer = torch.optim.AdamW([program.model.weight, program.model.bias], lr=0.05)
    with opened(home / "run", program) as run:
        assert run.resume() == STEPS
        assert same({n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in program.state().items()},
                    expected(home))  # fmt: skip
    dist.destroy_process_group()


def test_and_a_sharded_one(kept: Path) -> None:
    worlds.spawn(sharded, (kept,), 2)


def test_so_does_a_program_without_versions(kept: Path) -> None:
    program = Program(0, 1, seed=9)
    program.spec = None  # type: ignore[assignment]
    with opened(kept / "run", program) as run:
        assert run.resume() == STEPS
        assert same(program.state(), expected(kept))
        program.step(STEPS)
        run.commit()
    assert same(everstep_tensors(kept / "run"), program.state())


def test_and_whoever_restores_without_a_program(kept: Path) -> None:
    found = everstep.restore(kept / "run")
    assert same(everstep_tensors(kept / "run"), expected(kept))
    assert any("mean of 3 versions" in note for note in found.ledger.notes)


def everstep_tensors(path: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model/").removeprefix("optimizer/main/"): tensor
            for name, tensor in everstep.restore(path).tensors.items()}  # fmt: skip


def apart(rank: int, home: Path) -> None:
    worlds.met(rank, 2, home, "apart")
    program = Program(rank, 2, seed=9)
    with opened(home / "whole", program) as run:
        assert run.resume() == STEPS
        assert same(program.state(), torch.load(home / "whole.pt"))
    dist.destroy_process_group()


def test_what_was_one_is_given_to_each(tmp_path: Path) -> None:
    program = Program(0, 1)
    program.spec = None  # type: ignore[assignment]
    with opened(tmp_path / "whole", program) as run:
        run.resume()
        for at in range(STEPS):
            program.step(at)
            run.commit()
    torch.save(program.state(), tmp_path / "whole.pt")
    worlds.spawn(apart, (tmp_path,), 2)


@pytest.mark.parametrize("onto", ["single", "fsdp:2"])
def test_explain_says_what_becomes_of_them(kept: Path, onto: str) -> None:
    found = CliRunner().invoke(cli, ["explain", str(kept / "run"), "--onto", onto], obj={})
    assert found.exit_code == 0, found.output
    assert "weight: 3 ranks held values of their own" in found.output


def test_partial_is_the_first_word() -> None:
    spec = Spec(Mesh((("dp", 2), ("tp", 2))), (Rule("w", (Shard("tp", 0), Partial("dp"))),))
    with pytest.raises(Misdescribed, match="Partial must be the first word"):
        spec.locals({"w": (4,)}, 0)


def test_it_goes_with_other_words() -> None:
    spec = Spec(Mesh((("dp", 2), ("tp", 2))), (Rule("w", (Partial("dp"), Shard("tp", 0), Flat("tp"))),))
    held = spec.locals({"w": (8,)}, 3)["w"]
    assert held.logical_shape == (2, 8)
    assert [(piece.box.low, piece.box.high) for piece in held.pieces] == [((1, 6), (1 + 1, 8))]


def test_whole_numbers_do_not_become_one(tmp_path: Path) -> None:
    model = nn.ParameterDict({"w": nn.Parameter(torch.arange(3), requires_grad=False), "v": torch.zeros(3)})
    spec = Spec(Mesh((("dp", 1),)), (Rule(".*", (Partial("dp"),)),), shapes={"w": (3,), "v": (3,)})
    with pytest.raises(Unsupported, match=r"w: torch.int64 values of ranks .* cannot become one"):
        everstep.open(tmp_path / "run", model=model, optimizer=torch.optim.SGD([model["v"]]), spec=spec)
