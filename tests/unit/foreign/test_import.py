"""An imported checkpoint is a run: a program that opens it holds, bit for bit, what the source held."""

import copy
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import Damaged, Mismatch, Misuse, NotARun, StoreFailed, Unsupported
from everstep.foreign.arrive.arrive import Arrived, arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.recognise import read
from tests.unit.foreign import fixtures, programs
from tests.unit.foreign.programs import PROGRAMS, differing

KEEP = everstep.Settings(unmatched="keep")


def brought(source: str | Path, url: Path, **said: Any) -> Arrived:
    return arrive(str(source), str(url), wishes(**said))


def resumed(url: Path, program: programs.Program, settings: everstep.Settings | None = None, **state: Any) -> int:
    net, optimizer = program
    with everstep.open(url, model=net, optimizer=optimizer, settings=settings, state=state) as run:
        return run.resume()


def saved(path: Path, **said: Any) -> Path:
    torch.save(said, path)
    return path


def trained(kind: type[torch.optim.Optimizer] = torch.optim.AdamW, *, groups: int = 1) -> programs.Program:
    """A small model after two steps, its optimizer without names."""
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    return stepped(net, kind(split(net, groups), lr=0.1))  # type: ignore[call-arg]


def split(net: torch.nn.Module, groups: int) -> Any:
    flat = list(net.parameters())
    return flat if groups == 1 else [{"params": flat[::2], "lr": 0.3}, {"params": flat[1::2]}]


def stepped(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> programs.Program:
    for step in range(2):
        optimizer.zero_grad()
        net(torch.randn(6, 3, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
    return net, optimizer


def fresh(kind: type[torch.optim.Optimizer] = torch.optim.AdamW, *, groups: int = 1) -> programs.Program:
    torch.manual_seed(6)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    return net, kind(split(net, groups), lr=0.7)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_resumes_what_the_source_holds(name: str, tmp_path: Path) -> None:
    brought(fixtures.path(name), tmp_path / "run")
    net, optimizer = PROGRAMS[name]()
    assert resumed(tmp_path / "run", (net, optimizer)) == 3
    wanted = {key: value for key, value in fixtures.reference(name).items() if not key.startswith("other/")}
    if name.startswith("dcp"):  # of buffers that differ from rank to rank the reference has any one rank's
        wanted |= {key: net.state_dict()[key.removeprefix("model/")] for key in wanted if "running" in key}
    assert differing(programs.held(net, optimizer), wanted) == []
    assert programs.hyper(net, optimizer) == fixtures.groups(name)


def test_training_goes_on_as_if_torch_had_loaded_it(tmp_path: Path) -> None:
    source = trained()
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=source[1].state_dict())
    brought(tmp_path / "c.pt", tmp_path / "run")
    mine = fresh()
    with everstep.open(tmp_path / "run", model=mine[0], optimizer=mine[1]) as run:
        assert run.resume() == 2
        for program in (mine, source):
            stepped(*program)
        run.commit()
        run.wait(timeout=60)
    again = fresh()
    assert resumed(tmp_path / "run", again) == 3
    assert differing(programs.held(*mine), programs.held(*source)) == []
    assert differing(programs.held(*again), programs.held(*source)) == []


@pytest.mark.parametrize("kind", [
    "AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD", "Adafactor",
])  # fmt: skip
def test_each_of_torchs_optimizers_is_known_by_its_hyper_parameters(kind: str, tmp_path: Path) -> None:
    source = trained(getattr(torch.optim, kind))
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=source[1].state_dict())
    brought(tmp_path / "c.pt", tmp_path / "run")
    mine = fresh(getattr(torch.optim, kind))
    resumed(tmp_path / "run", mine)
    assert differing(programs.held(*mine), programs.held(*source)) == []
    ours, theirs = mine[1].param_groups[0], source[1].param_groups[0]
    assert {k: v for k, v in ours.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}


def test_without_optimizer_state_resume_refuses_and_says_how_to_go_on(tmp_path: Path) -> None:
    said = brought(fixtures.path("hf"), tmp_path / "run", step=40)
    assert any("optimizer state" in line for line in said.ledger.absent)
    net, optimizer = programs.zero()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(Mismatch, match=r"(?s)optimizer 'main': only in the program.*unmatched='keep'"):
        resumed(tmp_path / "run", (net, optimizer))
    assert differing(before, net.state_dict()) == []
    assert resumed(tmp_path / "run", (net, optimizer), KEEP) == 40
    assert differing(programs.held(net, optimizer), fixtures.reference("hf")) == []
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_the_optimizer_can_be_left_behind(tmp_path: Path) -> None:
    said = brought(fixtures.path("zero1"), tmp_path / "run", optimizer="none")
    assert any("left behind" in line for line in said.ledger.absent)
    net, optimizer = programs.zero()
    resumed(tmp_path / "run", (net, optimizer), KEEP)
    assert not optimizer.state


def test_a_flipped_byte_is_found_and_nothing_is_left(tmp_path: Path) -> None:
    for name in fixtures.CHECKSUMMED:
        folder = fixtures.copied(name, tmp_path)
        part = max(read(str(folder)).tensors, key=lambda found: found.place.nbytes)
        content = bytearray(Path(part.place.path).read_bytes())
        content[part.place.offset] ^= 1
        Path(part.place.path).write_bytes(content)
        with pytest.raises(Damaged, match=re.escape(Path(part.place.path).name)):
            brought(folder, tmp_path / "run", optimizer="none")
        assert sorted(os.listdir(tmp_path)) == sorted([name])
        folder.rename(tmp_path.parent / f"{tmp_path.name}-{name}")


def test_an_import_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    def tick(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        arrive(fixtures.path("hf"), str(tmp_path / "run"), wishes(), tick)
    assert os.listdir(tmp_path) == []


def test_an_import_that_is_killed_leaves_no_run(tmp_path: Path) -> None:
    program = (
        "import os, sys; from everstep.foreign.arrive.arrive import arrive; from everstep.foreign.arrive.wishes import "
        "Wishes; arrive(sys.argv[1], sys.argv[2], Wishes(), lambda done, total: done > total // 2 and os._exit(9))"
    )
    killed = subprocess.run([sys.executable, "-c", program, fixtures.path("zero1"), tmp_path / "run"], check=False)
    assert killed.returncode == 9
    assert all(name.startswith(".run.") for name in os.listdir(tmp_path))
    with pytest.raises(NotARun):
        everstep.restore(tmp_path / "run")
    brought(fixtures.path("zero1"), tmp_path / "run")


def test_what_is_there_already_is_not_touched(tmp_path: Path) -> None:
    brought(fixtures.path("zero1"), tmp_path / "run")
    with pytest.raises(StoreFailed, match="holds a run already"):
        brought(fixtures.path("zero3"), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(StoreFailed, match=r"notes\.txt"):
        brought(fixtures.path("zero3"), tmp_path / "other")
    (tmp_path / "empty").mkdir()
    brought(fixtures.path("zero3"), tmp_path / "empty")


def test_numbered_parameters_get_the_models_names(tmp_path: Path) -> None:
    source = trained(groups=2)
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=source[1].state_dict())
    with pytest.raises(Unsupported, match="--order"):
        brought(tmp_path / "c.pt", tmp_path / "run")
    names = [name for name, _ in source[0].named_parameters()]
    brought(tmp_path / "c.pt", tmp_path / "run", order=(tuple(names[::2]), tuple(names[1::2])))
    mine = fresh(groups=2)
    resumed(tmp_path / "run", mine)
    assert differing(programs.held(*mine), programs.held(*source)) == []
    with pytest.raises(Unsupported, match="mixed up"):
        brought(tmp_path / "c.pt", tmp_path / "wrong", order=(tuple(names),))


def test_a_step_that_is_a_number_becomes_what_torch_counts_with(tmp_path: Path) -> None:
    source = trained()
    state = copy.deepcopy(source[1].state_dict())
    for held in state["state"].values():
        held["step"] = int(held["step"])
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=state)
    brought(tmp_path / "c.pt", tmp_path / "run")
    mine = fresh()
    resumed(tmp_path / "run", mine)
    assert differing(programs.held(*mine), programs.held(*source)) == []


def test_a_step_that_is_counted_by_the_group_reaches_every_parameter(tmp_path: Path) -> None:
    source = trained()
    state = copy.deepcopy(source[1].state_dict())
    for held in state["state"].values():
        state["param_groups"][0]["step"] = int(held.pop("step"))
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=state)
    brought(tmp_path / "c.pt", tmp_path / "run")
    mine = fresh()
    resumed(tmp_path / "run", mine)
    assert differing(programs.held(*mine), programs.held(*source)) == []
    assert "step" not in mine[1].param_groups[0]


def test_half_of_an_optimizers_state_is_refused(tmp_path: Path) -> None:
    source = trained()
    state = copy.deepcopy(source[1].state_dict())
    del state["state"][1]["exp_avg_sq"]
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=state)
    with pytest.raises(Unsupported, match=r"'exp_avg_sq' of '0\.bias' is not in the checkpoint.*--optimizer none"):
        brought(tmp_path / "c.pt", tmp_path / "run")


def test_an_optimizer_that_could_be_two_is_asked_for(tmp_path: Path) -> None:
    source = trained(torch.optim.Adam)
    state = copy.deepcopy(source[1].state_dict())
    del state["param_groups"][0]["decoupled_weight_decay"]
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=state)
    with pytest.raises(Unsupported, match="--optimizer AdamW"):
        brought(tmp_path / "c.pt", tmp_path / "run")
    with pytest.raises(Misuse, match="AdamW, Adamax"):
        brought(tmp_path / "c.pt", tmp_path / "run", optimizer="adamw2")
    brought(tmp_path / "c.pt", tmp_path / "run", optimizer="adam")
    mine = fresh(torch.optim.Adam)
    resumed(tmp_path / "run", mine)
    assert differing(programs.held(*mine), programs.held(*source)) == []


def test_a_learning_rate_that_is_a_tensor_comes_over(tmp_path: Path) -> None:
    source = trained()
    state = copy.deepcopy(source[1].state_dict())
    state["param_groups"][0]["lr"] = torch.tensor(0.125)
    saved(tmp_path / "c.pt", model=source[0].state_dict(), optimizer=state)
    brought(tmp_path / "c.pt", tmp_path / "run")
    mine = fresh()
    resumed(tmp_path / "run", mine)
    assert torch.equal(mine[1].param_groups[0]["lr"], torch.tensor(0.125))


def test_a_schedulers_state_comes_over_when_it_is_asked_for(tmp_path: Path) -> None:
    brought(fixtures.path("plain"), tmp_path / "run", state=("lr=scheduler",))
    net, optimizer = programs.plain()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 77)
    resumed(tmp_path / "run", (net, optimizer), lr=scheduler)
    assert (scheduler.step_size, scheduler.last_epoch) == (2, 3)  # type: ignore[attr-defined]
    with pytest.raises(Misuse, match="'scheduler'"):
        brought(fixtures.path("plain"), tmp_path / "other", state=("lr=nothing",))


def test_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    rows = {f"w{at}": torch.full((4 << 20,), float(at)) for at in range(16)}  # 256 MiB
    saved(tmp_path / "c.pt", model=rows)
    program = (
        "import resource, sys; from everstep.foreign.arrive.arrive import arrive; from everstep.foreign.arrive.wishes "
        "import Wishes; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak(); "
        "arrive(sys.argv[1], sys.argv[2], Wishes()); print((peak() - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "c.pt", tmp_path / "run"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 96
    assert all(torch.equal(everstep.restore(tmp_path / "run").tensors[f"model/{name}"], rows[name]) for name in ("w3",))


def test_a_file_of_code_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    target = io.BytesIO()
    torch.save({"model": {"w": torch.ones(2)}, "evil": Evil()}, target)
    (tmp_path / "c.pt").write_bytes(target.getvalue())
    said = brought(tmp_path / "c.pt", tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    assert any("system" in line for line in said.ledger.left)
