"""Folders as ZeRO writes them, for any number of ranks: flat buffers, fragments, paddings that must never be seen."""

import math
from pathlib import Path

import torch

Tensors = dict[str, torch.Tensor]
Groups = list[dict[str, tuple[int, ...]]]
STATES = ("fp32", "exp_avg", "exp_avg_sq")


def logical(groups: Groups) -> dict[str, Tensors]:
    """By state and name: distinct values, so that no element can take another's place unseen."""
    found: dict[str, Tensors] = {state: {} for state in STATES}
    at = 1.0
    for state in STATES:
        for group in groups:
            for name, shape in group.items():
                count = math.prod(shape)
                found[state][name] = torch.arange(at, at + count).reshape(shape)
                at += count
    return found


def model_file(groups: Groups, world: int, module: Tensors, **more: object) -> dict[str, object]:
    shapes = [{name: torch.Size(shape) for name, shape in group.items()} for group in groups]
    return {
        "module": module, "buffer_names": [key for key in module if key.startswith("buffer")], "param_shapes": shapes,
        "frozen_param_shapes": None, "frozen_param_fragments": None, "shared_params": {}, "dp_world_size": world,
        "iteration": 5, **more,
    }  # fmt: skip


def hyper(groups: int) -> list[dict[str, object]]:
    return [{"lr": 0.1 * (at + 1), "params": [at]} for at in range(groups)]


def write_stage_1(folder: Path, groups: Groups, world: int, module: Tensors, **more: object) -> dict[str, Tensors]:
    folder.mkdir(parents=True)
    values = logical(groups)
    torch.save(model_file(groups, world, module, **more), folder / "mp_rank_00_model_states.pt")
    for rank in range(world):
        flats: dict[str, list[torch.Tensor]] = {state: [] for state in STATES}
        mappings = []
        for group in groups:
            total = sum(math.prod(shape) for shape in group.values())
            each = -(-total // world)
            begin, end = rank * each, (rank + 1) * each
            mapping, at = {}, 0
            for name, shape in group.items():
                low, high = max(at, begin), min(at + math.prod(shape), end)
                if low < high:
                    mapping[name] = {"numel": high - low, "start": low - begin}
                at += math.prod(shape)
            mappings.append(mapping)
            for state in STATES:
                whole = torch.cat([values[state][name].flatten() for name in group])
                padded = torch.cat([whole, torch.full((each * world - total,), float("nan"))])[begin:end]
                flats[state].append(padded[: max(0, total - begin)].clone() if state == "fp32" else padded.clone())
        state = {
            at: {"exp_avg": flats["exp_avg"][at], "exp_avg_sq": flats["exp_avg_sq"][at], "step": torch.tensor(4.0)}
            for at in range(len(groups))
        }
        optimizer = {
            "zero_stage": 1, "partition_count": [world] * len(groups), "param_slice_mappings": mappings,
            "single_partition_of_fp32_groups": flats["fp32"],
            "base_optimizer_state": {"state": state, "param_groups": hyper(len(groups))},
        }  # fmt: skip
        torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return values


def cut(tensor: torch.Tensor, world: int, rank: int) -> torch.Tensor:
    """A rank's even part, padded."""
    each = -(-tensor.numel() // world)
    padded = torch.cat([tensor.flatten(), torch.full((each * world - tensor.numel(),), float("nan")).to(tensor.dtype)])
    return padded[rank * each : (rank + 1) * each].clone()


def write_stage_3(folder: Path, groups: Groups, world: int, frozen: Tensors, buffers: Tensors) -> dict[str, Tensors]:
    folder.mkdir(parents=True)
    values = logical(groups)
    for rank in range(world):
        module = {name: torch.empty(0) for group in groups for name in group} | buffers
        described = model_file(
            groups, world, module, frozen_param_shapes={name: value.shape for name, value in frozen.items()},
            frozen_param_fragments={name: cut(value, world, rank) for name, value in frozen.items()},
        )  # fmt: skip
        torch.save(described, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flats = {
            state: [torch.cat([cut(values[state][name], world, rank) for name in group]) for group in groups]
            for state in STATES
        }
        state = {
            at: {"exp_avg": flats["exp_avg"][at], "exp_avg_sq": flats["exp_avg_sq"][at], "step": torch.tensor(4.0)}
            for at in range(len(groups))
        }
        optimizer = {
            "zero_stage": 3, "partition_count": world, "fp32_flat_groups": flats["fp32"],
            "optimizer_state_dict": {"state": state, "param_groups": hyper(len(groups))},
        }  # fmt: skip
        torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return values
