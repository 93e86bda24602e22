"""Real megatron-core: what dist_checkpointing saved is imported whole, and what we export as DCP it loads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import everstep
from everstep.cli.held import held
from everstep.errors import Unsupported
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from everstep.foreign.depart.depart import depart
from tests.peers.worlds import STEPS, batch, kept, needs, program, world
from tests.unit.foreign import programs
from tests.unit.foreign.programs import differing

pytestmark = needs("megatron.core")
LAYERS = 4
GROUPS = (("a.weight", "b.weight"), ("a.bias", "b.bias", "bn.weight", "bn.bias"))


def begun(rank: int, ranks: int) -> Any:
    """Megatron expects a GPU in two places only."""
    torch.cuda.synchronize = lambda *_a, **_k: None  # type: ignore[assignment]
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    from megatron.core import dist_checkpointing

    return dist_checkpointing


def train(rank: int, ranks: int, home: Path) -> None:
    """A replicated model with its optimizer, as FP32Optimizer.sharded_state_dict puts it."""
    checkpointing = begun(rank, ranks)
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.optimizer import (
        get_param_id_to_sharded_param_map,
        optim_state_to_sharding_state,
    )

    net, optimizer = program()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        ((net(x) - y) ** 2).mean().backward()
        optimizer.step()
    model = {
        name: ShardedTensor.from_rank_offsets(name, held if held.requires_grad else held.detach(), replica_id=rank)
        for name, held in net.state_dict(keep_vars=True).items()
    }
    flat = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = optimizer.state_dict()
    step = next(iter(state["state"].values()))["step"]
    optim_state_to_sharding_state(state, get_param_id_to_sharded_param_map(model, flat), exclude_keys=("step",))
    state["state"]["common_step"] = step
    (home / "saved").mkdir(exist_ok=True)
    dist.barrier()
    checkpointing.save({"model": model, "optimizer": state, "iteration": STEPS}, str(home / "saved"))
    if rank == 0:
        kept(programs.held(net, optimizer), home / "whole.pt")
    dist.barrier()
    dist.destroy_process_group()


def shards(rank: int, ranks: int, home: Path) -> None:
    """Weights cut over the ranks, layers on an axis, bfloat16 copies beside float32 masters."""
    checkpointing = begun(rank, ranks)
    from megatron.core.dist_checkpointing import ShardedTensor

    own = ShardedTensor.from_rank_offsets
    torch.manual_seed(0)
    wide, layers = torch.randn(8, 6), torch.randn(LAYERS, 3, 2)
    mine = range(rank * LAYERS // ranks, (rank + 1) * LAYERS // ranks)
    state: dict[str, Any] = {"iteration": 7, "optimizer": {"optimizer": {"param_groups": [{"lr": 0.25, "step": 7}]}}}
    found = {}
    for at, prefix in enumerate(
        ("", "optimizer.state.param.", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq.")
    ):
        kind = torch.float32 if at else torch.bfloat16
        rows, stack = (wide + at // 2).to(kind), (layers + at // 2).to(kind)
        key = f"{prefix}output.weight"
        state[key] = own(key, rows.chunk(ranks)[rank].contiguous(), (0, rank, ranks))
        key = f"{prefix}decoder.layers.weight"
        state[key] = [own(key, stack[i].clone(), (0, i, LAYERS), prepend_axis_num=1) for i in mine]
        if at:
            name = ("", "", "/exp_avg", "/exp_avg_sq")[at]
            first = "optimizer/main/" if name else "model/"
            found[f"{first}output.weight{name}"] = rows
            found |= {f"{first}decoder.layers.{i}.weight{name}": stack[i] for i in range(LAYERS)}
    (home / "saved").mkdir(exist_ok=True)
    dist.barrier()
    checkpointing.save(state, str(home / "saved"))
    if rank == 0:
        kept(found, home / "whole.pt")
    dist.barrier()
    dist.destroy_process_group()


def load(rank: int, ranks: int, home: Path) -> None:
    """From a folder that we wrote: by torch's own loader, and by Megatron's, a part of every matrix for each rank."""
    checkpointing = begun(rank, ranks)
    from megatron.core.dist_checkpointing import ShardedTensor
    from torch.distributed import checkpoint as dist_checkpoint

    whole = {
        name.replace("/", "."): t for name, t in torch.load(home / "whole.pt").items() if name.startswith("model/")
    }
    loaded = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    dist_checkpoint.load(loaded, checkpoint_id=str(home / "dcp"))
    wrong = differing(loaded, whole)
    if rank == 0:  # the two small files by which Megatron knows a checkpoint
        torch.save({}, home / "dcp" / "common.pt")
        said = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
        (home / "dcp" / "metadata.json").write_text(json.dumps(said | {"common_backend_version": 1}))
    dist.barrier()
    cut = {
        name: tensor.chunk(ranks)[rank] for name, tensor in whole.items() if tensor.dim() and len(tensor) % ranks == 0
    }
    assert cut
    cut |= {name: tensor for name, tensor in whole.items() if name not in cut}
    wanted = {
        name: ShardedTensor.from_rank_offsets(name, torch.zeros_like(part), (0, rank, ranks))
        if part.shape != whole[name].shape
        else ShardedTensor.from_rank_offsets(name, torch.zeros_like(part), replica_id=rank)
        for name, part in cut.items()
    }
    wrong += differing(checkpointing.load(wanted, str(home / "dcp")), cut)
    (home / f"wrong{rank}.json").write_text(json.dumps(wrong))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.timeout(600)
def test_an_import_gives_what_megatron_held(tmp_path: Path) -> None:
    world(train, tmp_path)
    with pytest.raises(Unsupported, match="2 param groups and does not say which"):
        arrive(str(tmp_path / "saved"), str(tmp_path / "run"), wishes())
    arrive(str(tmp_path / "saved"), str(tmp_path / "run"), wishes(order=GROUPS))
    net, optimizer = program(seed=9)
    with everstep.open(tmp_path / "run", model=net, optimizer=optimizer) as run:
        assert run.resume() == STEPS
    assert differing(programs.held(net, optimizer), torch.load(tmp_path / "whole.pt")) == []
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 3e-3]
    depart(held(str(tmp_path / "run"), None), str(tmp_path / "dcp"), "dcp")
    world(load, tmp_path)
    assert [json.loads((tmp_path / f"wrong{rank}.json").read_text()) for rank in range(2)] == [[], []]


@pytest.mark.timeout(600)
def test_masters_stacked_layers_and_the_step_of_a_group_come_over(tmp_path: Path) -> None:
    world(shards, tmp_path)
    layers = (r"decoder\.layers\.(.*)=decoder.layers.#.\1",)
    arrive(str(tmp_path / "saved"), str(tmp_path / "run"), wishes(optimizer="AdamW", stacks=layers))
    found = everstep.restore(tmp_path / "run")
    tensors = {name: tensor for name, tensor in found.tensors.items() if not name.endswith("/step")}
    assert differing(tensors, torch.load(tmp_path / "whole.pt")) == []
    steps = {float(tensor) for name, tensor in found.tensors.items() if name.endswith("/step")}
    assert (found.step, steps) == (7, {7.0})
    assert found.context["optimizers"]["main"][0]["lr"] == 0.25
