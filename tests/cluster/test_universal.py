"""What one parallelism saved, every other resumes: the same bits, from a base and from a base with records."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import everstep
from everstep.cli.explain import layout
from everstep.recover.explain import explain, shapes, writers
from everstep.store.disk import existing
from tests import worlds
from tests.cluster.pipeline import Pipeline
from tests.cluster.programs import Program, differences

WORLDS = {4: ("ddp", "fsdp", "hsdp", "2d", "pp interleaved x tp"), 2: ("tp", "pp", "pp interleaved")}
KINDS = ("single", *itertools.chain(*WORLDS.values()))
Pairs = Sequence[tuple[str, str]]
ALL = [(source, target) for source in range(len(KINDS)) for target in range(len(KINDS))]
SOME: Pairs = [(KINDS[a], KINDS[b]) for a, b in ALL if not a * b or (b - a) % len(KINDS) in (0, 1, 4)]
"""From one process and to it, to itself, and from each to two others; `make matrix` has the rest."""
REST: Pairs = [(KINDS[a], KINDS[b]) for a, b in ALL if (KINDS[a], KINDS[b]) not in SOME]
STEPS, MORE = 20, 2
AGAIN = "hsdp"
"""Of what goes on from these shards it is seen that it can be resumed in turn."""


def made(kind: str, seed: int = 0) -> Program:
    return Pipeline(kind, seed) if kind.startswith("pp") else Program(kind, seed)


def opened(path: Path, program: Program) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, state={"schedule": program.schedule},
        settings=everstep.Settings(buffer_bytes_max=16 << 20),
    )  # fmt: skip


def trained(path: Path, kind: str) -> None:
    """A run of some steps; what it ended with lies beside it, and how training went on without a break."""
    program = made(kind)
    with opened(path, program) as run:
        assert run.resume() == 0
        for at in range(STEPS):
            program.step(at)
            assert run.commit() == at + 1
        assert run.wait(timeout=60) == STEPS
        whole = program.whole()
    losses = [program.step(at) for at in range(STEPS, STEPS + MORE)]
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(whole, path.with_suffix(".pt"))
        path.with_suffix(".json").write_text(json.dumps(losses))


def strayed(losses: list[float], reference: Path, *, alike: bool) -> list[str]:
    """Whether training goes on as it would have without a break: to the bit where the layout is the same, and as far as
    sums in another order allow where it is not."""
    wanted = json.loads(reference.with_suffix(".json").read_text())
    near = losses == wanted if alike else losses == pytest.approx(wanted, rel=1e-4)
    return [] if near else [f"losses {losses}, not {wanted}"]


def resumed(path: Path, kind: str, reference: Path) -> list[str]:
    """What differs after the resume and two steps more; from one source also after another resume."""
    program = made(kind, seed=7)
    with opened(path, program) as run:
        assert run.resume() == STEPS
        assert program.schedule.last_epoch == STEPS
        found = differences(program.whole(), torch.load(reference))
        losses = []
        for at in range(STEPS, STEPS + MORE):
            losses.append(program.step(at))
            if reference.stem == AGAIN:
                run.commit()
        found += strayed(losses, reference, alike=reference.stem == kind)
        if reference.stem != AGAIN:
            return found
        assert run.wait(timeout=60) == STEPS + MORE
        ended = program.whole()
    again = made(kind, seed=8)
    with opened(path, again) as run:
        assert run.resume() == STEPS + MORE
        return found + differences(again.whole(), ended)


def restored(path: Path, reference: Path) -> list[str]:
    """What differs where the state is put together without a program."""
    wanted = {name: value for name, value in torch.load(reference).items() if not name.startswith("hyper")}
    found = everstep.restore(path)
    names = {f"model/{name}": name for name in wanted if " of " not in name}
    names |= {
        f"buffer/{name}" if key == "buffer" else f"optimizer/main/{name}/{key}": f"{key} of {name}"
        for key, _, name in (told.partition(" of ") for told in wanted if " of " in told)
    }
    plain = {names[name]: value for name, value in found.tensors.items() if name in names}
    groups = found.context["optimizers"]["main"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert sorted(name for group in groups for name in group["params"]) == sorted(
        name for name in wanted if f"exp_avg of {name}" in wanted
    )
    return differences(plain, wanted)


def refused(path: Path) -> list[str]:
    """Programs that do not hold what the run does, and were resumed all the same, or changed."""
    wrong = []
    for what in ("optimizer", "state", "parameter", "shape", "buffer"):
        program = Program("single", seed=3)
        state = {"schedule": program.schedule}
        if what == "optimizer":
            program.optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)  # type: ignore[assignment]
        elif what == "state":
            state["another"] = torch.optim.lr_scheduler.ExponentialLR(program.optimizer, 0.5)
        elif what == "parameter":
            program.model.head.register_parameter("bias", torch.nn.Parameter(torch.zeros(13)))  # type: ignore[union-attr]
        elif what == "shape":
            program.model.head.weight.data = torch.zeros(13, 14)  # type: ignore[union-attr]
        else:
            program.model.register_buffer("other", torch.zeros(2))
        before = program.whole()
        try:
            with everstep.open(path, model=program.model, optimizer=program.optimizer, state=state) as run:
                run.resume()
            wrong.append(what)
        except everstep.errors.Mismatch:
            wrong += [f"{what} changed {name}" for name in differences(before, program.whole())]
    return wrong


def explained(path: Path) -> list[str]:
    """What is wrong in what `explain` says of four shards that become two."""
    disk = existing(str(path))
    step, parts = writers(disk, str(path))
    disk.release()
    spec, names = layout("fsdp:2", shapes(parts))
    said = explain(step, parts, spec, names)
    wrong = [f"rank {r.rank} reads {r.writers}" for r in said.readings if len(r.writers) > 3 or r.absent]
    return wrong + ([] if step == STEPS and len(parts) == 4 else [f"step {step} of {len(parts)}"])


def training(rank: int, world: int, home: Path) -> None:
    worlds.met(rank, world, home, f"training {world}")
    for kind in WORLDS[world]:
        trained(home / kind, kind)
    dist.destroy_process_group()


def resuming(rank: int, world: int, home: Path, pairs: Pairs, results: "mp.SimpleQueue[tuple[str, list[str]]]") -> None:
    worlds.met(rank, world, home, f"resuming {world}")
    for source, target in ((source, target) for source, target in pairs if target in WORLDS[world]):
        path = home / f"{source} to {target}"
        if rank == 0:
            shutil.copytree(home / source, path)
        dist.barrier()
        found = resumed(path, target, home / f"{source}.pt")
        if rank == 0:
            results.put((path.name, found))
    dist.destroy_process_group()


def resumed_by_all(home: Path, pairs: Pairs) -> dict[str, list[str]]:
    """All that needs several processes, in as few worlds of them as there are sizes: starting one takes longest."""
    trained(home / "single", "single")
    for world in WORLDS:
        worlds.spawn(training, (world, home), world)
    found: dict[str, list[str]] = {}
    for world in WORLDS:
        results: mp.SimpleQueue[tuple[str, list[str]]] = worlds.context.SimpleQueue()
        worlds.spawn(resuming, (world, home, pairs, results), world)
        while not results.empty():
            name, differing = results.get()
            found[name] = differing
    for source in (source for source, target in pairs if target == "single"):
        path = home / f"{source} to single"
        shutil.copytree(home / source, path)
        found[path.name] = resumed(path, "single", home / f"{source}.pt")
    return found


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    home = tmp_path_factory.mktemp("universal")
    found = resumed_by_all(home, SOME)
    found["explained"], found["refused"] = explained(home / "fsdp"), refused(home / "fsdp")
    for kind in KINDS:
        found[f"{kind}, restored"] = restored(home / kind, home / f"{kind}.pt")
    return found


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return resumed_by_all(tmp_path_factory.mktemp("universal"), REST)


CELLS = [f"{source} to {target}" for source, target in SOME]
CELLS += ["explained", "refused", *(f"{kind}, restored" for kind in KINDS)]


@pytest.mark.parametrize("cell", CELLS)
def test_a_parallelism_becomes_another(cell: str, cells: dict[str, list[str]]) -> None:
    assert cells[cell] == []


@pytest.mark.matrix
@pytest.mark.parametrize(("source", "target"), REST)
def test_every_parallelism_becomes_every_other(source: str, target: str, rest: dict[str, list[str]]) -> None:
    assert rest[f"{source} to {target}"] == []
