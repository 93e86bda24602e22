"""DeepSpeed's universal folder: `zero/<fqn>/{fp32,exp_avg,exp_avg_sq,step}.pt`, and the model files beside it.

The files of stage 3 hold bare one-dimensional tensors; the model files still know their shapes. The converter also
writes frozen parameters and buffers, the integers among them as floats; the model files' own are exact and are taken.
"""

import math
import os

from everstep.errors import Damaged
from everstep.foreign import deepspeed, plain, saved, trees
from everstep.foreign.files import beside, listed
from everstep.foreign.found import Checkpoint, Stored
from everstep.foreign.inert import TensorRef
from everstep.foreign.names import Arranged
from everstep.foreign.zero import MASTER, Merged, RankFile

ZERO = "zero"
SCALARS = "optimizer_state.pt"


def read(folder: str) -> Checkpoint:
    """Everything in the folder."""
    model = deepspeed.models(folder)
    scalars = deepspeed.loaded(os.path.join(folder, ZERO, SCALARS))
    found, merged = Arranged(folder), Merged()
    for name, shape in model.trained.items():
        _take(merged, beside(os.path.join(folder, ZERO), name, model.first.path), name, shape)
    _steps(merged, scalars, [name for name in model.trained if ("step", name) not in merged.tensors])
    deepspeed.add_trained(found, merged)
    deepspeed.add_rest(found, model)
    # Stage 3 keeps rank 0's whole state, where the groups lie deeper.
    inner = trees.node(scalars.tree, scalars.path).get("optimizer_state_dict", scalars.tree)
    groups = trees.row(inner, scalars.path, "param_groups")
    deepspeed.add_named_groups(found, model.shapes, groups, scalars.path)
    deepspeed.expect_equal_states(merged, found.objects["optimizer/param_groups"], os.path.join(folder, ZERO))
    for extra in sorted(set(listed(os.path.join(folder, ZERO))) - set(model.trained)):
        path = os.path.join(folder, ZERO, extra, f"{MASTER}.pt")
        if f"model/{extra}" not in found.tensors and f"model/{extra}" not in found.aliases and os.path.exists(path):
            found.add(f"model/{extra}", _tensor(path, None))
            found.notes.append(f"{extra!r} is in no model file; the converter may have changed its element type.")
    return found.checkpoint("deepspeed universal")


def _take(merged: Merged, folder: str, name: str, shape: tuple[int, ...]) -> None:
    """The states of one parameter."""
    files = [file for file in listed(folder) if file.endswith(".pt")]
    if f"{MASTER}.pt" not in files:
        raise Damaged(f"{folder}: {MASTER}.pt of {name!r} is missing; the model trains it. Convert or copy again.")
    for file in files:
        key, path = file.removesuffix(".pt"), os.path.join(folder, file)
        if key == "step":
            opened = saved.load(path)
            value = plain.tree(opened, opened.tree)
            if isinstance(value, Stored):
                merged.tensors[key, name] = value
            elif isinstance(value, int | float):
                merged.numbers[key, name] = value
        else:
            merged.tensors[key, name] = _tensor(path, shape)


def _tensor(path: str, shape: tuple[int, ...] | None) -> Stored:
    """The tensor of a file: bare, or under `param`; flat ones get their shape back."""
    opened = saved.load(path)
    ref = opened.tree.get("param") if isinstance(opened.tree, dict) else opened.tree
    if not isinstance(ref, TensorRef):
        raise Damaged(f"{path}: holds no tensor. Convert or copy it again.")
    stored = opened.stored(ref)
    if shape is None or len(stored.shape) > 1 or stored.shape == shape:
        return stored
    if math.prod(stored.shape) != math.prod(shape):
        raise Damaged(f"{path}: holds {math.prod(stored.shape)} elements, the model's shape is {list(shape)}.")
    return Stored(stored.dtype, shape, tuple(saved.part_of(stored, 0, shape, 0, math.prod(shape))))


def _steps(merged: Merged, scalars: RankFile, wanted: list[str]) -> None:
    """Stage 3 keeps the step in rank 0's state, where it is the same for all."""
    if not wanted:
        return
    state = trees.node(scalars.tree, scalars.path).get("optimizer_state_dict")
    states = state.get("state") if isinstance(state, dict) else None
    first = next(iter(states.values()), None) if isinstance(states, dict) else None
    step = first.get("step") if isinstance(first, dict) else None
    for name in wanted:
        if isinstance(step, Stored):
            merged.tensors["step", name] = step
        elif isinstance(step, int | float):
            merged.numbers["step", name] = step
