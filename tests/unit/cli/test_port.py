"""`import` and `export` as a person meets them: a ledger, one message for what is wrong, and a run that is good."""

from collections.abc import Callable
from pathlib import Path

import torch

import everstep
from tests.unit.cli.runs import Done

Cli = Callable[..., Done]
FIXTURES = Path(__file__).parents[2] / "fixtures" / "foreign"


def test_an_import_prints_what_came_and_what_did_not(tmp_path: Path, cli: Cli) -> None:
    done = cli("import", FIXTURES / "hf", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    assert "imported           8 parameters" in done.out
    assert "not in the source  optimizer state and hyper-parameters: resume with" in done.out
    assert "not in the source  random number generators" in done.out
    assert cli("verify", tmp_path / "run").out.endswith("good\n")


def test_an_import_says_the_same_as_json(tmp_path: Path, cli: Cli) -> None:
    said = cli("import", FIXTURES / "zero1", tmp_path / "run", "--json").json()
    assert (said["kind"], said["step"], said["left_behind"]) == ("deepspeed zero-1", 3, said["left_behind"])
    assert said["proved_bytes"] > 2000
    assert any("AdamW" in line for line in said["imported"])


def test_a_run_is_not_written_over(tmp_path: Path, cli: Cli) -> None:
    cli("import", FIXTURES / "zero1", tmp_path / "run")
    done = cli("import", FIXTURES / "zero3", tmp_path / "run")
    assert done.code == 2
    assert "holds a run already" in done.err


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path, cli: Cli) -> None:
    done = cli("import", tmp_path, tmp_path / "run")
    assert done.code == 2
    assert "Looked for" in done.err
    assert not (tmp_path / "run").exists()


def test_rules_reach_the_import(tmp_path: Path, cli: Cli) -> None:
    done = cli("import", FIXTURES / "hf", tmp_path / "run", "--rename", r"module\.(.*)=\1")
    assert done.code == 2
    assert "no name matches as a whole" in done.err
    rules = ["--rename", r"(.*)=net.\1", "--buffers", r"net\.frozen\..*", "--step", "7"]
    assert cli("import", FIXTURES / "hf", tmp_path / "run", *rules).code == 0
    found = everstep.restore(tmp_path / "run")
    assert found.step == 7
    assert "buffer/net.frozen.weight" in found.tensors
    assert "model/net.a.weight" in found.tensors


def test_the_order_of_parameters_comes_from_a_file(tmp_path: Path, cli: Cli) -> None:
    net = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD([{"params": [net.bias]}, {"params": [net.weight], "lr": 0.5}], lr=0.1, momentum=0.9)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "c.pt")
    (tmp_path / "order").write_text("bias\n\n\nweight\n")
    assert cli("import", tmp_path / "c.pt", tmp_path / "run", "--order", tmp_path / "order").code == 0
    groups = everstep.restore(tmp_path / "run").context["optimizers"]["main"]
    assert [(group["params"], group["lr"]) for group in groups] == [(["bias"], 0.1), (["weight"], 0.5)]
    (tmp_path / "order").write_text("\n")
    done = cli("import", tmp_path / "c.pt", tmp_path / "other", "--order", tmp_path / "order")
    assert done.code == 2
    assert "is empty" in done.err


def test_an_export_says_what_it_wrote_and_refuses_what_is_there(run: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("export", run, tmp_path / "m.pt", "--format", "torch", "--step", "20")
    assert (done.code, done.err) == (0, "")
    assert "step 20 as torch" in done.out
    assert "every one read back and compared" in done.out
    again = cli("export", run, tmp_path / "m.pt", "--format", "torch")
    assert again.code == 2
    assert "exists already" in again.err
    assert torch.load(tmp_path / "m.pt", weights_only=True)["step"] == 20
