"""Plain tensors that are parts of others: what one spec describes, every other resumes, from base and log."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import everstep
from everstep.layout.language import Shard
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec
from tests import worlds
from tests.cluster.specs import LOGICAL, SPECS, Program, trained

WORLDS = {1: ("single",), 2: ("tp", "stages"), 3: ("zero",), 4: ("grid",)}
STEPS = 4


def opened(path: Path, program: Program) -> everstep.Run:
    return everstep.open(
        path, model=program.model, optimizer=program.optimizer, spec=program.spec,
        settings=everstep.Settings(buffer_bytes_max=8 << 20),
    )  # fmt: skip


def train(path: Path, kind: str, rank: int) -> None:
    program = Program(kind, rank)
    with opened(path, program) as run:
        assert run.resume() == 0
        for at in range(STEPS):
            program.step(at)
            run.commit()
        assert run.wait(timeout=60) == STEPS


def resumed(path: Path, kind: str, rank: int) -> list[str]:
    """What differs after the resume, and after two steps more and another resume."""
    program = Program(kind, rank, seed=7)
    with opened(path, program) as run:
        assert run.resume() == STEPS
        found = program.differing(STEPS)
        decays = {name: group["weight_decay"] for group in program.optimizer.param_groups
                  for name, parameter in program.model.named_parameters()
                  if any(parameter is held for held in group["params"])}  # fmt: skip
        found += [f"decay of {name}" for name, decay in decays.items() if decay != (0.0 if name == "norm" else 0.1)]
        for at in range(STEPS, STEPS + 2):
            program.step(at)
            run.commit()
        assert run.wait(timeout=60) == STEPS + 2
    again = Program(kind, rank, seed=8)
    with opened(path, again) as run:
        assert run.resume() == STEPS + 2
        return found + again.differing(STEPS + 2)


def ranks(rank: int, world: int, home: Path, results: "mp.SimpleQueue[tuple[str, list[str]]]") -> None:
    torch.set_num_threads(1)
    if world > 1:
        store = dist.FileStore(str(home / f"{world}"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    for kind in WORLDS[world]:
        train(home / kind, kind, rank)
    if world > 1:
        dist.barrier()
    sources = [kind for size in WORLDS for kind in WORLDS[size] if (home / kind).exists()]
    for source, target in itertools.product(sources, WORLDS[world]):
        path = home / f"{source} to {target}"
        if rank == 0:
            shutil.copytree(home / source, path)
        if world > 1:
            dist.barrier()
        results.put((path.name, resumed(path, target, rank)))
        if world > 1:
            dist.barrier()
    if world > 1:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    home = tmp_path_factory.mktemp("specs")
    found: dict[str, list[str]] = {}
    for world in WORLDS:
        results: mp.SimpleQueue[tuple[str, list[str]]] = worlds.context.SimpleQueue()
        worlds.spawn(ranks, (world, home, results), world)
        while not results.empty():
            name, differing = results.get()
            found.setdefault(name, []).extend(differing)
    for kind in itertools.chain(*WORLDS.values()):
        path = home / f"{kind} to one"
        shutil.copytree(home / kind, path)
        found[path.name] = resumed(path, "single", 0)
        found[f"{kind}, restored"] = restored(home / kind)
    shutil.copytree(home / "tp", home / "bounded")
    found["bounded"] = bounded(home / "bounded")
    return found


def bounded(path: Path) -> list[str]:
    """What is wrong when a run goes on in another layout with little room: the old one must make way."""
    program = Program("single", 0)
    settings = everstep.Settings(retain_bytes_max=40_000, base_log_bytes_max=20_000, segment_bytes=20_000)
    with everstep.open(
        path, model=program.model, optimizer=program.optimizer, spec=program.spec, settings=settings
    ) as run:
        for at in range(run.resume(), STEPS + 60):
            program.step(at)
            run.commit()
            run.wait(timeout=60)
    held = sum(file.stat().st_size for file in (path / "w00000").iterdir())
    wrong = [] if held < 150_000 else [f"{held} bytes are held"]
    again = Program("single", 0, seed=3)
    with opened(path, again) as run:
        assert run.resume() == STEPS + 60
        return wrong + again.differing(STEPS + 60)


def restored(path: Path) -> list[str]:
    """What differs where logical tensors are put together without a program."""
    found, wanted = everstep.restore(path).tensors, trained(STEPS)
    names = {f"model/{name}": (name, "value") for name in LOGICAL}
    names |= {f"optimizer/main/{name}/{kind}": (name, kind) for name in LOGICAL for kind in ("exp_avg", "exp_avg_sq")}
    return [full for full, (name, kind) in names.items() if not torch.equal(found[full], wanted[name][kind])]


KINDS = list(itertools.chain(*WORLDS.values()))
CELLS = [f"{a} to {b}" for b in KINDS for a in KINDS if SPECS[a].mesh.size <= SPECS[b].mesh.size]
CELLS += ["bounded", *(f"{a} to one" for a in KINDS)] + [f"{a}, restored" for a in KINDS]


@pytest.mark.parametrize("cell", CELLS)
def test_every_spec_becomes_every_other(cell: str, cells: dict[str, list[str]]) -> None:
    assert cells[cell] == []


def test_a_spec_that_does_not_fit_is_refused_before_anything_exists(tmp_path: Path) -> None:
    program = Program("single", 0)
    rows = Spec(Mesh((("tp", 2),)), (Rule(".*", (Shard("tp", 0),)),), shapes=LOGICAL)
    without = {name: shape for name, shape in LOGICAL.items() if name != "w"}
    wrong = {
        "mesh has 2 ranks, and 1 train": rows,
        "'w' is here, and not in the spec": Spec(Mesh(), (Rule(".*"),), shapes=without),
        "'norm' has shape": Spec(Mesh(), (Rule(".*"),), shapes={**LOGICAL, "norm": (9,)}),
        "'more' should be here": Spec(Mesh(), (Rule(".*"),), shapes={**LOGICAL, "more": (9,)}),
    }  # fmt: skip
    for message, spec in wrong.items():
        program.spec = spec
        with pytest.raises(everstep.errors.Misdescribed, match=message):
            opened(tmp_path / "run", program)
    assert not (tmp_path / "run").exists()
