"""Optimizers that nobody knows to work element by element: the ranks that trained replay them together; other layouts
get what a digest proves, and nothing else.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import everstep
from everstep.errors import CannotReplay, Damaged, Mismatch
from everstep.recover import in_step
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.faults.test_keeper import keeper_pid

WORLD, KEPT, STEPS = 2, 7, 10
KINDS = ("own", "muon", "factored", "unowned")


class Own(torch.optim.Optimizer):
    """The user's, element by element; only a digest can tell."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.pull = 0.1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kept = self.state[parameter].setdefault("kept", torch.zeros_like(parameter))
                    kept.lerp_(parameter.grad, self.pull)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(kept.sign(), alpha=group["lr"])


class Factored(Own):
    """The user's, with state that has no place in another cut: one number per local row."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                part, grad = (getattr(t, "_local_tensor", t) for t in (parameter, parameter.grad))
                rows = self.state[parameter].setdefault("rows", torch.zeros(max(2, part.shape[0])))
                rows[: part.shape[0]].lerp_(grad.reshape(part.shape[0], -1).square().mean(1), self.pull)
                scale = rows[: part.shape[0]].rsqrt().reshape(-1, *[1] * (part.dim() - 1))
                part.sub_(grad * scale.nan_to_num(0, 0, 0), alpha=group["lr"] * 0.01)


class Unowned(Own):
    """The user's, with state that is no parameter's: how many steps there were, and how fast they are now."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        state: dict[Any, Any] = self.state  # type: ignore[assignment]
        kept = state.setdefault("all of it", {"count": 0, "pace": torch.ones(3), "last": torch.tensor(0.0)})
        kept["count"] += 1
        kept["pace"].mul_(0.9)
        kept["last"].fill_(kept["count"])
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"] * float(kept["pace"][2]) / kept["count"])


class Trained(Program):
    """`how`: "muon" is torch's, which on DTensors asks the other ranks; the others are the user's."""

    def __init__(self, layout: str, how: str, seed: int = 0) -> None:
        super().__init__(layout, seed)
        groups = [{**group} for group in self.optimizer.param_groups]
        if how == "muon":
            matrices = [p for layer in self.model.layers for p in (layer.up.weight, layer.down.weight)]  # type: ignore[union-attr]
            self.optimizer = torch.optim.Muon(matrices, lr=1e-2)  # type: ignore[assignment]
        else:
            kind = {"own": Own, "factored": Factored, "unowned": Unowned}[how]
            self.optimizer = kind([{k: g[k] for k in ("params", "lr", "weight_decay")} for g in groups])  # type: ignore[assignment]
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)

    def whole(self) -> dict[str, torch.Tensor]:
        kept = self.optimizer.state.get("all of it", {})  # type: ignore[call-overload]
        return super().whole() | {f"{name} of all": torch.as_tensor(held).clone() for name, held in kept.items()}


def opened(path: Path, program: Program, **more: Any) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state={"schedule": program.schedule},
        settings=everstep.Settings(buffer_bytes_max=16 << 20, **more),
    )  # fmt: skip


def same(program: Program, expected: Path, rank: int) -> bool:
    """What a rank keeps for its own part alone, rank 0 has said."""
    wrong = differences(program.whole(), torch.load(expected))
    return [name for name in wrong if rank == 0 or not name.startswith("rows of")] == []


def trained(rank: int, home: Path) -> None:
    """Each kind is trained to KEPT, copied, and trained on; last, one more time until its processes are gone.

    The ranks write bases at steps of their own: they have to agree on one to begin with.
    """
    worlds.met(rank, WORLD, home, "trained")
    for how in KINDS:
        program = Trained("fsdp", how)
        with opened(home / how, program, base_log_bytes_max=18_000 if rank else 27_000, segment_bytes=4000) as run:
            run.resume()
            for at in range(STEPS):
                program.step(at)
                run.commit()
                run.wait(timeout=60)  # a slow disk would be given other bases
                if at + 1 in (KEPT, STEPS):
                    whole = program.whole()
                    if rank == 0:
                        torch.save(whole, home / f"{how}.{at + 1}.pt")
                        if at + 1 == KEPT:
                            shutil.copytree(home / how, home / f"{how}.kept")
                    dist.barrier()
    program = Trained("fsdp", "muon")
    run = opened(home / "left", program)
    run.resume()
    for at in range(KEPT):
        program.step(at)
        run.commit()
    dist.barrier()
    os._exit(0)


def resumed(rank: int, home: Path, runs: list[tuple[str, str, str]]) -> None:
    """The same ranks again: each run goes on as if nothing had been."""
    worlds.met(rank, WORLD, home, f"resumed {runs[0][0]}")
    for name, how, origin in runs:
        program = Trained("fsdp", how, seed=5)
        with opened(home / name, program) as run:
            assert run.resume() == KEPT
            assert run.ledger is not None
            assert run.ledger.records > 0
            assert run.ledger.replay == "the optimizer itself"
            assert {item.origin.split()[0] for item in run.ledger if item.kind == "parameter"} == {origin}
            assert same(program, home / f"{how}.{KEPT}.pt", rank)
            for at in range(KEPT, STEPS):
                program.step(at)
                run.commit()
            run.wait(timeout=60)
        assert same(program, home / f"{how}.{STEPS}.pt", rank)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("in-step")
    worlds.spawn(trained, (home,), WORLD)
    return home


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> Path:
    for how in KINDS:
        shutil.copytree(home / f"{how}.kept", tmp_path / how)
        for at in (KEPT, STEPS):
            shutil.copy(home / f"{how}.{at}.pt", tmp_path)
    return tmp_path


def test_the_ranks_that_trained_replay_together_from_disk(kept: Path) -> None:
    worlds.spawn(resumed, (kept, [(how, how, "base") for how in KINDS]), WORLD)


def test_and_from_memory(home: Path) -> None:
    assert keeper_pid(home / "left") is not None
    worlds.spawn(resumed, (home, [("left", "muon", "memory")]), WORLD)


@pytest.mark.parametrize("how", ["own", "unowned"])
def test_an_optimizer_of_the_users_own_is_replayed_in_another_layout_too(kept: Path, how: str) -> None:
    program = Trained("single", how, seed=5)
    with opened(kept / how, program) as run:
        assert run.resume() == KEPT
        assert run.ledger is not None
        assert run.ledger.records > 0
        names = {item.name for item in run.ledger if item.kind == "optimizer"}
        assert ("main/#all of it" in names) is (how == "unowned")
    assert differences(program.whole(), torch.load(kept / f"{how}.{KEPT}.pt")) == []
    assert vars(program.optimizer)["pull"] == 0.1


def test_what_needed_all_ranks_is_not_replayed_by_one(kept: Path) -> None:
    with (
        opened(kept / "muon", Trained("single", "muon")) as run,
        pytest.raises(CannotReplay, match=r"replayed by the ranks that trained.*source='state'"),
    ):
        run.resume()
    with opened(kept / "muon", Trained("single", "muon")) as run:
        assert run.resume(step=0) == 0


def test_state_that_is_not_cut_as_its_parameter_is_has_no_place_elsewhere(kept: Path) -> None:
    program = Trained("single", "factored", seed=5)
    before = program.whole()
    with (
        opened(kept / "factored", program) as run,
        pytest.raises(Mismatch, match=r"Nothing was changed(.|\n)*is not cut as its parameter is"),
    ):
        run.resume()
    assert differences(before, program.whole()) == []
    with (
        opened(kept / "factored", Trained("single", "factored")) as run,
        pytest.raises(Mismatch, match=r"is not cut as its parameter is: .* is not to be used"),
    ):
        run.resume(step=1)  # base 0 has no such state yet, only the log says what it became


def damaged(rank: int, home: Path) -> None:
    worlds.met(rank, WORLD, home, "damaged")
    with opened(home / "muon", Trained("fsdp", "muon", seed=5)) as run:
        told = "cannot go this way" if rank == 0 else "digest"
        with pytest.raises(Damaged, match=told):
            run.resume()
    dist.destroy_process_group()


def test_nobody_steps_if_one_cannot_read_its_part(kept: Path) -> None:
    for base in (kept / "muon" / "w00001").glob("b*.safetensors"):
        data = bytearray(base.read_bytes())
        data[-5] ^= 1
        base.write_bytes(data)
    worlds.spawn(damaged, (kept,), WORLD)


@pytest.mark.parametrize("how", KINDS)
def test_one_process_on_dtensors_goes_in_step_with_itself(how: str, tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        program = Trained("fsdp", how)
        with opened(tmp_path / "run", program) as run:
            run.resume()
            for at in range(4):
                program.step(at)
                run.commit()
        again = Trained("fsdp", how, seed=5)
        with opened(tmp_path / "run", again) as run:
            assert run.resume() == 4
            assert run.ledger is not None
            assert run.ledger.replay == "the optimizer itself"
        assert differences(again.whole(), program.whole()) == []
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("kind", "needed"), [(torch.optim.AdamW, False), (torch.optim.Adafactor, True), (Own, True)])
def test_who_is_replayed_in_step(kind: type[torch.optim.Optimizer], needed: bool) -> None:
    from everstep.capture.roster import call_the_roll

    model = nn.Linear(2, 2)
    assert in_step.needed(call_the_roll(model, kind(model.parameters()), {})) is needed  # type: ignore[call-arg]
