"""`ls`, `show`, `log`: what they say is what the run holds."""

import os
from pathlib import Path

import pytest
import torch

import everstep
from everstep.log import lease
from everstep.store.disk import existing
from tests.unit.cli.runs import Net, contents, flip, look


def test_ls_lists_what_the_inventory_holds(run: Path, cli) -> None:
    found, listing = look(run), cli("ls", run, "--json").json()
    assert listing["steps"] == [[0, 26]]
    assert (listing["acknowledged"], listing["newest"], listing["epoch"]) == (26, 26, 3)
    assert sorted(b["step"] for b in listing["bases"]) == sorted(b.step for b in found.manifest.bases)
    assert len(listing["segments"]) == len(found.manifest.segments)
    assert {s["state"] for s in listing["segments"]} == {"sealed"}
    assert [t["epoch"] for t in listing["epochs"]] == [1, 2, 3]
    assert [(b["epoch"], b["current"], b["steps"]) for b in listing["branches"]] == [
        (3, True, [[0, 26]]),
        (2, False, [[0, 20]]),
    ]
    assert (listing["live"], listing["owner"], listing["damages"]) == (False, None, [])


def test_ls_of_an_older_branch_shows_that_branch(run: Path, cli) -> None:
    listing = cli("ls", f"{run}#2", "--json").json()
    assert (listing["epoch"], listing["steps"], listing["acknowledged"]) == (2, [[0, 20]], 20)
    assert cli("ls", f"{run}#9").code == 2


def test_ls_sees_a_trainer_without_disturbing_it(run: Path, cli) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    with everstep.open(run, model=net, optimizer=optimizer, state={"lr": scheduler}) as training:
        training.resume()
        before = contents(run)
        listing = cli("ls", run, "--json").json()
        assert listing["live"]
        assert f"process {os.getpid()} " in listing["owner"]
        assert cli("prune", run, "--keep", "last:1").code == 2
        assert contents(run) == before
        optimizer.step()
        training.commit()
        assert training.wait() == 27
    assert cli("ls", run, "--json").json()["live"] is False


def test_asking_who_holds_the_lease_takes_nothing(run: Path) -> None:
    disk = existing(str(run))
    assert lease.holder(disk, 0) is None
    held = disk.lock("w00000/lease", b'{"pid":7,"host":"far"}')
    assert held is not None
    assert lease.holder(disk, 0) == "process 7 on 'far'"
    disk.close(held)
    assert lease.holder(disk, 0) is None
    disk.release()


def test_ls_names_damage(run: Path, cli) -> None:
    flip(run / "w00000/e00000003-00000002.seg", 140)
    listing = cli("ls", run, "--json").json()
    assert len(listing["damages"]) == 1
    assert [s["state"] for s in listing["segments"]].count("damaged") == 1
    assert "DAMAGED: segment e00000003-00000002.seg" in cli("ls", run).out


def test_show_at_a_base_gives_every_digest(run: Path, cli) -> None:
    state = cli("show", run, "--step", 24, "--json").json()
    assert (state["step"], state["base"], state["records"], state["from"]) == (24, 24, 0, "base 24")
    assert all(len(tensor["digest"]) == 32 for tensor in state["tensors"])
    weight = next(t for t in state["tensors"] if t["name"] == "model/first.weight")
    assert (weight["dtype"], weight["shape"], weight["bytes"]) == ("F32", [8, 8], 256)
    assert state["versions"]["torch"] == torch.__version__
    assert state["optimizers"][0]["kind"] == "torch.optim.adamw.AdamW"


def test_show_after_a_base_says_which_records_lead_there(run: Path, cli) -> None:
    state = cli("show", run, "--json").json()
    assert state["from"] == "base 24 + 2 records"
    assert {t["digest"] for t in state["tensors"]} == {None}
    origin = {item["name"]: item["from"] for item in state["context"]}
    assert (origin["state/lr"], origin["rng/python"]) == ("record 26", "base 24")
    records = cli("log", run, "--from", 26, "--json").json()["records"]
    assert state["parameters_digest"] == records[0]["parameters_digest"]


@pytest.mark.parametrize("step", [3, 6, 17, 26])
def test_the_hyper_parameters_shown_are_those_that_a_restore_gives(run: Path, cli, step: int) -> None:
    shown = cli("show", run, "--step", step, "--json").json()["optimizers"][0]["groups"][0]["hyper"]["lr"]
    assert shown == everstep.restore(run, step).context["optimizers"]["main"][0]["lr"]


def test_show_goes_round_a_damaged_base(run: Path, cli) -> None:
    flip(run / "w00000/b000000000024-e00000003.json", 300)
    state = cli("show", run, "--json").json()
    assert state["base"] == 20
    assert "b000000000024" in state["notes"][0]


def test_show_of_a_step_that_is_not_held_names_those_that_are(run: Path, cli) -> None:
    done = cli("show", run, "--step", 99)
    assert done.code == 2
    assert "Steps that can: 0 to 26" in done.err


def test_log_has_one_line_per_record(run: Path, cli) -> None:
    assert cli("log", run).out.count("\n") == 26
    records = cli("log", run, "--json").json()["records"]
    assert [r["step"] for r in records] == list(range(1, 27))
    assert {r["kind"] for r in records} == {"update"}
    assert records[3]["updates"] == [{"optimizer": "main", "gradients": 5, "skipped": False, "scale": None}]
    assert [r["step"] for r in records if r["state_digest"]] == [5, 10, 15, 20, 25]


def test_log_shows_where_the_learning_rate_moved(run: Path, cli) -> None:
    records = cli("log", run, "--from", 2, "--to", 12, "--json").json()["records"]
    assert [r["step"] for r in records] == list(range(2, 13))
    assert [r["step"] for r in records if any(change["name"] == "lr" for change in r["hyper"])] == [4, 8, 12]


def test_log_of_an_older_branch_follows_that_branch(run: Path, cli) -> None:
    assert [r["epoch"] for r in cli("log", f"{run}#2", "--from", 15, "--json").json()["records"]] == [2] * 6
    assert [r["epoch"] for r in cli("log", run, "--from", 15, "--json").json()["records"]] == [2] + [3] * 11
