"""`--format deepspeed-universal`: what DeepSpeed's own `load_universal_checkpoint` reads, under stages 1, 2 and 3.

latest_universal                          the folder's name below
global_step<N>_universal/
  mp_rank_00_model_states.pt              what is not trained, and the run's numbers; stage 3 wants the same file
  zero_pp_rank_0_mp_rank_00_model_states.pt   under this name
  zero/optimizer_state.pt                 param groups
  zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt
"""

import os
from collections.abc import Callable
from typing import Any

import torch

from everstep.errors import Unsupported
from everstep.foreign.depart import trees
from everstep.foreign.depart.state import Optimizer, State
from everstep.store.disk import Disk, LocalDisk, write_new

ADAM = ("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")
STATES = ("exp_avg", "exp_avg_sq")
VERSION = 0.4
DEEPSPEED = "0.19.8"
"""Of the universal format, and of the DeepSpeed whose files these are like: it refuses those that name none."""
WIDENED = (torch.float32, torch.bfloat16, torch.float16)
"""Element types whose every value float32 has; the format has no other."""
NOTES = (
    "DeepSpeed's universal loader leaves buffers and frozen parameters as the program made them. They are in "
    "mp_rank_00_model_states.pt: engine.module.load_state_dict(torch.load(PATH)['module'], strict=False).",
    "a learning-rate scheduler's state is not carried: engine.load_checkpoint(DIR, load_lr_scheduler_states=False).",
)


def write(disk: LocalDisk, state: State) -> list[str]:
    """Write the folder; what it does not carry, or DeepSpeed does not restore."""
    one = _only(state)
    steps = {name: _step(name, one) for group in one.groups for name in group.parameters}
    for at, group in enumerate(one.groups):
        if len({float(steps[name]) for name in group.parameters}) > 1:
            raise Unsupported(f"the parameters of group {at} took different numbers of steps; DeepSpeed keeps one.")
    top = tag(state)
    for folder in (top, f"{top}/zero"):
        disk.make_dir(folder)
    _file(disk, f"{top}/zero/optimizer_state.pt", _scalars(one, steps))
    for name, step in steps.items():
        _parameter(disk, f"{top}/zero/{name}", state.parameters[name], one.state[name], step)
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        _file(disk, f"{top}/{name}", _model(state, one))
    write_new(disk, "latest_universal", [top.encode()])
    return [*NOTES, *_differing(one), *_widened(state, steps)]


def tag(state: State) -> str:
    """The folder inside, which `latest_universal` names."""
    return f"global_step{state.step}_universal"


def changed(state: State) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """What the format makes of a tensor: all that is trained is float32."""
    frozen = {f"model/{name}" for name in (*state.frozen, *state.buffers)}
    return lambda name, tensor: tensor if name in frozen else tensor.to(torch.float32)


def _only(state: State) -> Optimizer:
    if len(state.optimizers) != 1:
        raise Unsupported(f"the run has {len(state.optimizers)} optimizers; DeepSpeed's universal format holds one.")
    (one,) = state.optimizers.values()
    if one.kind not in ADAM:
        raise Unsupported(f"the optimizer is a {one.kind}; DeepSpeed's universal format knows Adam's state only.")
    for name in (name for group in one.groups for name in group.parameters):
        if lacking := [key for key in (*STATES, "step") if key not in one.state.get(name, {})]:
            raise Unsupported(
                f"{name!r} has no {lacking[0]} at step {state.step}; DeepSpeed's universal format cannot do without. "
                "Export a step after the first."
            )
        if "/" in name or name in (".", ".."):
            raise Unsupported(f"{name!r}: DeepSpeed makes a folder of a parameter's name, and this is none.")
        for key, held in (("fp32", state.parameters[name]), *((key, one.state[name][key]) for key in STATES)):
            if held.dtype not in WIDENED:
                raise Unsupported(f"{key} of {name!r} is {held.dtype}; DeepSpeed's universal format holds float32.")
    return one


def _step(name: str, one: Optimizer) -> torch.Tensor:
    return torch.as_tensor(one.state[name]["step"]).detach().to("cpu", torch.float32).reshape(())


def _parameter(disk: LocalDisk, folder: str, parameter: torch.Tensor, state: Any, step: torch.Tensor) -> None:
    """One parameter at a time: only its own tensors are ever widened in memory, and only its own folder is open."""
    disk.make_dir(folder)
    own = LocalDisk(os.path.join(disk.root, folder))
    try:
        for key, held in (("fp32", parameter), *((key, state[key]) for key in STATES)):
            _file(own, f"{key}.pt", {"param": held.detach().to(torch.float32), "cat_dim": 0})
        _file(own, "step.pt", step)
    finally:
        own.release()


def _scalars(one: Optimizer, steps: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Stages 1 and 2 read the groups at the top, stage 3 one level below, and the step of its first state."""
    groups = [
        {**{key: value for key, value in group.hyper.items() if key not in ("params", "param_names")}, "params": [at]}
        for at, group in enumerate(one.groups)
    ]
    first = next(iter(steps.values()))
    return {
        "param_groups": groups,
        "optimizer_state_dict": {"state": {0: {"step": first}}, "param_groups": groups},
        "ds_version": DEEPSPEED,
    }


def _model(state: State, one: Optimizer) -> dict[str, Any]:
    frozen = {name: state.parameters[name] for name in state.frozen}
    return {
        "module": {**frozen, **state.buffers},
        "buffer_names": list(state.buffers),
        "optimizer": None,
        "param_shapes": [
            {name: torch.Size(state.parameters[name].shape) for name in group.parameters} for group in one.groups
        ],
        "frozen_param_shapes": {name: torch.Size(tensor.shape) for name, tensor in frozen.items()},
        "frozen_param_fragments": None,
        "shared_params": dict(state.aliases),
        "lr_scheduler": None,
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": state.step,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_version": DEEPSPEED,
        "universal_checkpoint_info": {"universal_checkpoint_version": VERSION},
        "iteration": state.step,
    }


def _differing(one: Optimizer) -> list[str]:
    hyper = [{key: value for key, value in group.hyper.items() if key != "params"} for group in one.groups]
    if all(group == hyper[0] for group in hyper):
        return []
    return ["the param groups differ: under stage 3 DeepSpeed gives all of them the first one's hyper-parameters."]


def _widened(state: State, names: Any) -> list[str]:
    narrow = [name for name in names if state.parameters[name].dtype != torch.float32]
    return [f"{len(narrow)} parameters of lower precision were widened to float32, exactly."] if narrow else []


def _file(disk: Disk, path: str, tree: Any) -> None:
    write_new(disk, path, trees.pieces(tree, path))
