"""Calls that have no meaning are refused with a message that says what has; everything else just works."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import everstep
from everstep.errors import Mismatch, Misuse, NotARun, RunInUse, Unsupported
from tests.faults.conftest import Small

Make = Callable[..., Small]


def test_a_commit_without_an_optimizer_step_is_refused(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        with pytest.raises(Misuse, match=r"no optimizer has stepped since the last commit.*micro-batch"):
            run.commit()
        program.step()
        assert run.commit() == 1
        with pytest.raises(Misuse, match="commit\\(\\) after step 1"):
            run.commit()


def test_two_optimizer_steps_in_one_commit_are_both_replayed(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        for _ in range(3):
            program.step()
            program.step()
            run.commit()
    again = small(seed=4)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == 3
        assert again.bits() == program.bits()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_gradients_that_are_not_numbers_are_replayed_as_they_were(bad: float, tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        for at in range(6):
            (program.model(torch.randn(4, 8)).square().sum() * (bad if at == 3 else 1.0)).backward()
            program.optimizer.step()
            program.optimizer.zero_grad()
            run.commit()
    again = small(seed=4)
    with again.open(tmp_path / "run") as run:
        assert run.resume() == 6
        assert again.bits() == program.bits()


def test_closing_twice_does_nothing_and_a_closed_run_says_so(tmp_path: Path, small: Make) -> None:
    program = small()
    run = program.open(tmp_path / "run")
    run.resume()
    run.close()
    run.close()
    with pytest.raises(Misuse, match="closed"):
        run.commit()


def test_resume_comes_first_and_once(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        with pytest.raises(Misuse, match=r"call resume\(\) first"):
            run.commit()
        run.resume()
        with pytest.raises(Misuse, match="twice"):
            run.resume()


def test_a_run_of_another_model_is_refused_with_every_difference(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run", state={"lr": torch.optim.lr_scheduler.ConstantLR(program.optimizer)}) as run:
        run.resume()
        program.step()
        run.commit()
    other = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), nn.Tanh(), nn.Linear(8, 3), nn.BatchNorm1d(3))
    before = [p.clone() for p in other.parameters()]
    run = everstep.open(tmp_path / "run", model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    with run, pytest.raises(Mismatch) as refused:
        run.resume()
    text = str(refused.value)
    for part in (
        "'0.weight': F32 in the run, F64 in the model",
        "'2.weight': shape (2, 8) in the run, (3, 8)",
        "'3.weight': only in the program",
        "buffer '3.running_mean': only in the program",
        "torch.optim.adamw.AdamW in the run, torch.optim.sgd.SGD",
        "state 'lr': only in the run",
    ):
        assert part in text
    assert len(refused.value.items) >= 8
    assert all(torch.equal(one, two) for one, two in zip(before, other.parameters(), strict=True)), (
        "nothing was changed"
    )


def test_groups_in_another_order_get_their_own_hyper_parameters(tmp_path: Path, small: Make) -> None:
    def grouped(model: nn.Module, *order: str) -> torch.optim.AdamW:
        kinds = {"decayed": [p for p in model.parameters() if p.dim() > 1],
                 "plain": [p for p in model.parameters() if p.dim() < 2]}  # fmt: skip
        decays = {"decayed": 0.25, "plain": 0.0}
        return torch.optim.AdamW([{"params": kinds[kind], "weight_decay": decays[kind]} for kind in order], lr=0.01)

    model = small().model
    with everstep.open(tmp_path / "run", model=model, optimizer=grouped(model, "decayed", "plain")) as run:
        run.resume()
    other = small(seed=2).model
    turned = grouped(other, "plain", "decayed")
    for group in turned.param_groups:
        group["weight_decay"] = 0.5
    with everstep.open(
        tmp_path / "run", model=other, optimizer=turned, settings=everstep.Settings(unmatched="keep")
    ) as run:
        run.resume()
    assert [group["weight_decay"] for group in turned.param_groups] == [0.0, 0.25]
    mixed = torch.optim.AdamW(other.parameters(), lr=0.01)
    with (
        everstep.open(
            tmp_path / "run", model=other, optimizer=mixed, settings=everstep.Settings(unmatched="keep")
        ) as run,
        pytest.raises(everstep.errors.Mismatch, match="groups that differ"),
    ):
        run.resume()


def test_unmatched_items_are_kept_when_the_settings_say_so(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        program.step()
        run.commit()
    torch.manual_seed(3)
    larger = nn.Sequential(*program.model, nn.Linear(2, 2))
    fresh = larger[3].weight.detach().clone()
    optimizer = torch.optim.AdamW(larger.parameters(), lr=0.01)
    with everstep.open(
        tmp_path / "run", model=larger, optimizer=optimizer, settings=everstep.Settings(unmatched="keep")
    ) as run:
        assert run.resume() == 1
        assert torch.equal(larger[3].weight, fresh)
        assert run.ledger is not None
        assert {item.name: item.status for item in run.ledger if item.kind == "parameter"}["3.weight"] == "kept"
        larger(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        assert run.commit() == 2
        run.wait(timeout=30)
        assert any("step 2 is kept as a base: the program holds other things" in text for text in run.health.warnings)
        after = [p.detach().clone() for p in larger.parameters()]
    again = nn.Sequential(*small(seed=4).model, nn.Linear(2, 2))
    with everstep.open(tmp_path / "run", model=again, optimizer=torch.optim.AdamW(again.parameters(), lr=0.01)) as run:
        assert run.resume() == 2
        assert all(torch.equal(one, two) for one, two in zip(again.parameters(), after, strict=True))


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path, small: Make) -> None:
    program = small()
    with program.open(tmp_path / "run") as run:
        run.resume()
        with pytest.raises(RunInUse, match=f"process {os.getpid()} on .* is writing this run"):
            small().open(tmp_path / "run")
        program.step()
        assert run.commit() == 1


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("nowhere", NotARun, "no such directory"),
        ("file", NotARun, "this is a file"),
        ("empty", NotARun, "holds no run"),
    ],
)
def test_a_path_that_holds_no_run_is_named(path: str, error: type[Exception], text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=text):
        everstep.restore(tmp_path / path)


def test_a_directory_of_something_else_is_not_made_a_run(tmp_path: Path, small: Make) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(Misuse, match=r"holds other files \('thesis.tex'\)"):
        small().open(tmp_path)
    with pytest.raises(Misuse, match="only local directories"):
        small().open("s3://bucket/run")


class Holder:
    def __init__(self, value: object) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"deep": [1, {"inner": self.value}]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.value = state


def test_state_that_cannot_be_recorded_is_named_by_its_key(tmp_path: Path, small: Make) -> None:
    with pytest.raises(Unsupported, match=r"state/mine/deep/1/inner: a builtins.function cannot be recorded"):
        small().open(tmp_path / "run", state={"mine": Holder(lambda: 0)})
    assert not (tmp_path / "run").exists()
    with pytest.raises(Unsupported, match=r"state\['x'\]: a int has no state_dict"):
        small().open(tmp_path / "other", state={"x": 3})


def test_a_parameter_that_is_in_no_module_is_named(tmp_path: Path) -> None:
    model, stray = nn.Linear(2, 2), nn.Parameter(torch.zeros(3))
    with pytest.raises(Unsupported, match=r"group 0: a parameter of shape \(3,\) is not in the model"):
        everstep.open(tmp_path / "run", model=model, optimizer=torch.optim.SGD([*model.parameters(), stray], lr=0.1))
