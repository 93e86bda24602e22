"""What is exported is loaded by the system whose format it is, and holds every bit of the step."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import everstep
from everstep.cli.held import held
from everstep.errors import StoreFailed, Unsupported
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.depart.depart import FORMATS, depart
from everstep.foreign.depart.state import Group, Optimizer, State
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.unit.foreign import programs
from tests.unit.foreign.programs import differing


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.arange(5)).square().mean().backward()
    optimizer.step()


class Cache(programs.Tied):
    """With a buffer that its state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(3), persistent=False)


def program() -> programs.Program:
    net = Cache()
    return net, torch.optim.AdamW(
        [{"params": [net["embed"].weight]}, {"params": [net["norm"].weight, net["norm"].bias], "weight_decay": 0.0}],
        lr=0.01,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, torch.Tensor]]]:
    """A run of five steps, and what the program held after each."""
    path = tmp_path_factory.mktemp("export") / "run"
    net, optimizer = program()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    states = []
    with everstep.open(path, model=net, optimizer=optimizer, state={"lr": schedule}) as recorded:
        for _ in range(recorded.resume(), 5):
            step(net, optimizer)
            schedule.step()
            recorded.commit()
            states.append({name: tensor.clone() for name, tensor in programs.held(net, optimizer).items()})
        recorded.wait(timeout=60)
    return path, states


Run = tuple[Path, list[dict[str, torch.Tensor]]]


def exported(run: Run, target: Path, form: str, step: int | None = None, **said: Any) -> Path:
    depart(held(str(run[0]), step), str(target), form, **said)
    return target


def persistent(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name != "model/mask"}


@pytest.mark.parametrize("at", [None, 3])
def test_torch_loads_model_and_optimizer(at: int | None, run: Run, tmp_path: Path) -> None:
    said = torch.load(exported(run, tmp_path / "c.pt", "torch", at), weights_only=True)
    net, optimizer = program()
    net.load_state_dict(said["model"], strict=True)
    optimizer.load_state_dict(said["optimizer"])
    wanted = run[1][(at or 5) - 1]
    assert said["step"] == (at or 5)
    assert differing(persistent(programs.held(net, optimizer)), persistent(wanted)) == []
    assert said["state"]["lr"]["last_epoch"] == (at or 5)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.1 ** ((at or 5) // 2))
    assert optimizer.param_groups[1]["weight_decay"] == 0.0
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_tied_names_share_their_bytes_in_torchs_file(run: Run, tmp_path: Path) -> None:
    exported(run, tmp_path / "c.pt", "torch")
    model = torch.load(tmp_path / "c.pt", weights_only=True, mmap=True)["model"]
    assert model["head.weight"].data_ptr() == model["embed.weight"].data_ptr()
    assert all(tensor.data_ptr() % 64 == 0 for tensor in model.values())


def test_safetensors_has_the_model(run: Run, tmp_path: Path) -> None:
    found = load_file(exported(run, tmp_path / "m.safetensors", "safetensors"))
    wanted = {n.removeprefix("model/"): t for n, t in persistent(run[1][-1]).items() if n.startswith("model/")}
    assert differing(found, wanted) == []


def test_hf_has_shards_of_the_wanted_size_and_an_index(run: Run, tmp_path: Path) -> None:
    exported(run, tmp_path / "hf", "hf", shard_bytes=60)
    said = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    found: dict[str, torch.Tensor] = {}
    for name in sorted(set(said["weight_map"].values())):
        with safe_open(tmp_path / "hf" / name, "pt") as file:
            keys = list(file.keys())
            held = {key: file.get_tensor(key) for key in keys}
        assert all(said["weight_map"][key] == name for key in keys)
        assert len(keys) == 1 or sum(tensor.nbytes for tensor in held.values()) <= 60
        found |= held
    wanted = {n.removeprefix("model/"): t for n, t in persistent(run[1][-1]).items() if n.startswith("model/")}
    assert differing(found, wanted) == []
    assert said["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    exported(run, tmp_path / "one", "hf")
    assert os.listdir(tmp_path / "one") == ["model.safetensors"]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_dcp_loads_into_the_state_dicts_of_torch(flat: bool, run: Run, tmp_path: Path) -> None:
    exported(run, tmp_path / "dcp", "dcp")
    net, optimizer = program()
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, state = get_state_dict(net, optimizer, options=options)
    whole = {"model": model, "optimizer": state, "step": 0}
    dist_checkpoint.load(whole, checkpoint_id=tmp_path / "dcp", no_dist=True)
    set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=state, options=options)
    assert differing(persistent(programs.held(net, optimizer)), persistent(run[1][-1])) == []
    assert whole["step"] == 5
    assert optimizer.param_groups[1]["weight_decay"] == 0.0
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


@pytest.mark.parametrize("form", ["torch", "dcp", "deepspeed-universal"])
def test_what_is_exported_is_imported_again(form: str, run: Run, tmp_path: Path) -> None:
    exported(run, tmp_path / "there", form)
    arrive(
        str(tmp_path / "there"), str(tmp_path / "back"), wishes(ties=("head.weight=embed.weight",) * (form == "dcp"))
    )
    net, optimizer = program()
    with everstep.open(tmp_path / "back", model=net, optimizer=optimizer) as again:
        assert again.resume() == 5
    assert differing(persistent(programs.held(net, optimizer)), persistent(run[1][-1])) == []
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


def ranks(rank: int, home: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "store"), 2), rank=rank, world_size=2)
    trained = Program("fsdp")
    settings = everstep.Settings(buffer_bytes_max=16 << 20)
    with everstep.open(home / "run", model=trained.model, optimizer=trained.optimizer, settings=settings) as recorded:
        recorded.resume()
        for at in range(3):
            trained.step(at)
            recorded.commit()
        recorded.wait(timeout=60)
        whole = trained.whole()
    if rank == 0:
        torch.save(whole, home / "whole.pt")
    dist.destroy_process_group()


def test_what_several_ranks_hold_is_exported_in_whole_tensors(tmp_path: Path) -> None:
    worlds.spawn(ranks, (tmp_path,), 2)
    for form in FORMATS:
        depart(held(str(tmp_path / "run"), None), str(tmp_path / form), form)
    said = torch.load(tmp_path / "torch", weights_only=True)
    single = Program("single", seed=4)
    single.model.load_state_dict(said["model"], strict=True)
    single.optimizer.load_state_dict(said["optimizer"])
    assert differences(single.whole(), torch.load(tmp_path / "whole.pt")) == []


def test_a_target_that_exists_is_not_touched(run: Run, tmp_path: Path) -> None:
    for form in FORMATS:
        target = tmp_path / form
        target.mkdir()
        (target / "mine").write_text("kept")
        with pytest.raises(StoreFailed):
            exported(run, target, form)
        assert os.listdir(target) == ["mine"]


def adam(dtype: torch.dtype = torch.float32, **states: Any) -> State:
    one = torch.ones(2, 2, dtype=dtype)
    held = {"exp_avg": one * 2, "exp_avg_sq": one * 3, "step": torch.tensor(4.0)} | states
    groups = [Group(("w",), {"lr": 0.1})]
    return State(4, {"w": one}, optimizers={"main": Optimizer("torch.optim.adam.Adam", groups, {"w": held})})


REFUSED: dict[str, tuple[str, State, str]] = {
    "no optimizer": ("deepspeed-universal", State(1, {"w": torch.ones(2)}), "0 optimizers"),
    "another optimizer": (
        "deepspeed-universal",
        State(1, {"w": torch.ones(2)}, optimizers={"main": Optimizer("torch.optim.sgd.SGD", [], {})}),
        "Adam's state only",
    ),
    "double precision": ("deepspeed-universal", adam(torch.float64), "float64"),
    "complex numbers": ("hf", State(1, {"a": torch.ones(9), "w": torch.ones(2, dtype=torch.complex64)}), "complex"),
    "a value that torch.save would pickle": ("torch", State(1, {}, extra={"m.": object()}), r"builtins\.object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_left(case: str, tmp_path: Path) -> None:
    form, state, said = REFUSED[case]
    with pytest.raises(Unsupported, match=said):
        depart(state, str(tmp_path / "there"), form, shard_bytes=40)
    assert os.listdir(tmp_path) == []


def test_steps_before_the_first_have_no_state_for_deepspeed(run: Run, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="Export a step after the first"):
        exported(run, tmp_path / "there", "deepspeed-universal", 0)


def test_lower_precision_is_widened_for_deepspeed(tmp_path: Path) -> None:
    notes = depart(adam(torch.bfloat16), str(tmp_path / "there"), "deepspeed-universal").notes
    assert any("widened" in note for note in notes)
    folder = tmp_path / "there" / "global_step4_universal" / "zero" / "w"
    assert torch.equal(torch.load(folder / "exp_avg.pt")["param"], torch.full((2, 2), 2.0))
    assert torch.equal(torch.load(folder / "step.pt"), torch.tensor(4.0))


def test_many_parameters_need_few_open_files(tmp_path: Path) -> None:
    names = [f"layer.{at}.weight" for at in range(200)]
    states = {name: {"exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2), "step": torch.ones(())} for name in names}
    many = Optimizer("torch.optim.adamw.AdamW", [Group(tuple(names), {"lr": 0.1})], states)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        state = State(1, {name: torch.ones(2) for name in names}, optimizers={"main": many})
        depart(state, str(tmp_path / "there"), "deepspeed-universal")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FULL = """
import resource, sys, torch
from everstep.errors import StoreFailed
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.depart.depart import depart
from tests.unit.foreign.test_export import adam
state = adam(exp_avg=torch.ones(512, 512), exp_avg_sq=torch.ones(512, 512))
state.parameters["w"] = torch.ones(512, 512)
target, form = sys.argv[1:]
if form == "import":
    depart(state, target + ".pt", "torch")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    arrive(target + ".pt", target, wishes(optimizer="adam")) if form == "import" else depart(state, target, form)
except StoreFailed as failed:
    print(failed)
"""


@pytest.mark.parametrize("form", [*FORMATS, "import"])
def test_a_disk_that_takes_no_more_leaves_nothing(form: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "there", form], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert "Nothing was left there" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == (["there.pt"] if form == "import" else [])


@pytest.mark.parametrize("form", FORMATS)
def test_the_command_says_what_it_wrote(form: str, run: Run, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "export", run[0], tmp_path / "there", "--format", form, "--step", "4",
         "--json"], capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert (said["step"], said["format"], said["read_back"]) == (4, form, True)
    assert done.stderr == ""
