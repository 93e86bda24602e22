"""DeepSpeed's own folders, ZeRO stages 1, 2 and 3, without its converter and without its classes.

The weights are the fp32 master copies that the optimizer steps; the copies in lower precision, which are derived from
them, are not listed. Frozen parameters and buffers are: DeepSpeed's loader of universal checkpoints leaves them at
their fresh initialisation. Every parameter group keeps its own hyper-parameters, with its parameters' names.
"""

import os
import re
from collections import defaultdict
from dataclasses import dataclass

from everstep.errors import Damaged, Unsupported
from everstep.foreign import names, plain, saved, trees, zero
from everstep.foreign.files import File, beside, listed, same
from everstep.foreign.found import Checkpoint, Plain, Stored
from everstep.foreign.groups import hyper, tensors
from everstep.foreign.names import Arranged
from everstep.foreign.plain import Tree
from everstep.foreign.trees import Node, Shapes
from everstep.foreign.zero import MASTER, Merged, RankFile

OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
FOREIGN = re.compile(r"layer_\d+.*-model_states\.pt|layer_\d+_expert_.*\.pt|expp_rank_.*\.pt")
TAG_BYTES_MAX = 4096
STRUCTURE = frozenset({
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments",
    "shared_params",
})  # fmt: skip
"""Keys of a model file that describe the tensors; all others are the run's state."""


@dataclass(frozen=True, slots=True)
class Model:
    """What the model files say: of every rank in stage 3, of one otherwise."""

    files: list[RankFile]
    shapes: list[Shapes]
    cut: bool

    @property
    def first(self) -> RankFile:
        return self.files[0]

    @property
    def trained(self) -> Shapes:
        return {name: shape for group in self.shapes for name, shape in group.items()}


def read(path: str) -> Checkpoint:
    """The folder of a tag, or the one above it, whose `latest` names the tag."""
    folder = tagged(path)
    model = models(folder)
    ranks = _files(folder, OPTIMIZER)
    world = trees.count(model.first.tree, model.first.path, "dp_world_size")
    found = Arranged(path)
    if len(ranks) > world:
        found.notes.append(f"{len(ranks) - world} files of ranks beyond {world} are left from another save; not read.")
    missing = [rank for rank in range(min(world, len(ranks) + 20)) if rank not in ranks]
    if ranks and missing:
        raise Damaged(f"{folder}: the optimizer files of ranks {missing[:20]} of {world} are missing. Copy them.")
    if not ranks and model.shapes:
        raise Damaged(f"{folder}: ZeRO saved this, and none of its optimizer files is there. Copy them.")
    if not ranks:
        return _without_zero(folder, model)
    optimizers = [loaded(ranks[rank]) for rank in range(world)]
    stage = trees.node(optimizers[0].tree, optimizers[0].path, "optimizer_state_dict").get("zero_stage", 1)
    for rank in optimizers:
        _expect_world(rank, world)
    merged = (zero.by_parameter if stage == 3 else zero.by_fragments)(optimizers, model.shapes)
    add_trained(found, merged)
    add_rest(found, model)
    add_groups(found, model.shapes, optimizers[0], "optimizer_state_dict" if stage == 3 else "base_optimizer_state")
    expect_equal_states(merged, found.objects.get("optimizer/param_groups"), folder)
    return found.checkpoint(f"deepspeed zero-{stage}")


def tagged(path: str, latest: str = "latest") -> str:
    """The folder that holds the files."""
    if latest not in listed(path):
        return path
    with File(os.path.join(path, latest)) as file:
        tag = file.read(0, min(file.size, TAG_BYTES_MAX)).decode(errors="replace").strip()
    return beside(path, tag, file.path)


def models(folder: str) -> Model:
    """The model files of a folder, rank 0 first."""
    if odd := [name for name in listed(folder) if FOREIGN.fullmatch(name)]:
        raise Unsupported(
            f"{os.path.join(folder, odd[0])}: pipeline modules and mixtures of experts are not read. Convert it with "
            f"DeepSpeed's ds_to_universal, or save consolidated weights."
        )
    found = _files(folder, MODEL)
    cut = any(os.path.basename(path).startswith("zero_") for path in found.values())
    if sorted(found) != list(range(len(found))) or not found:
        raise Damaged(
            f"{folder}: has model files of the ranks {sorted(found)[:20]}; rank 0's or some between are missing."
        )
    files = [loaded(found[0])]
    world = trees.count(files[0].tree, files[0].path, "dp_world_size")
    if not world:
        raise Damaged(f"{files[0].path}: was saved by no ranks. The file is damaged; copy it again.")
    if cut:  # stage 3
        if len(found) < world:
            raise Damaged(f"{folder}: has {len(found)} model files, {world} ranks saved. Copy the missing ones.")
        files += [loaded(found[rank]) for rank in range(1, world)]
    said = trees.at(files[0].tree, files[0].path, "param_shapes")
    groups = trees.row(said, files[0].path) if said is not None else []
    return Model(files, [trees.shapes(group, files[0].path) for group in groups], cut)


def add_trained(found: Arranged, merged: Merged) -> None:
    for (key, name), stored in merged.tensors.items():
        found.add(f"model/{name}" if key == MASTER else f"optimizer/{key}/{name}", stored)
    found.unknown += merged.unknown
    for (key, name), value in merged.numbers.items():
        found.add(f"optimizer/{key}/{name}", value)


def expect_equal_states(merged: Merged, groups: Plain, where: str) -> None:
    """The parameters of one group have one optimizer, so they have the same states."""
    states: dict[str, set[str]] = defaultdict(set)
    for key, name in (*merged.tensors, *merged.numbers):
        states[name].add(key)
    for group in groups if isinstance(groups, list) else []:
        params = group["params"] if isinstance(group, dict) else None
        members = [str(name) for name in params] if isinstance(params, list) else []
        every = set().union(*(states[name] for name in members))
        for name in members:
            if gaps := sorted(every - states[name]):
                raise Damaged(
                    f"{where}: {gaps[0]!r} of {name!r} is missing, other parameters of its group have it. Other "
                    f"tensors are not concerned; find the file, or use another checkpoint."
                )


def add_rest(found: Arranged, model: Model) -> None:
    """Frozen parameters, buffers, shared names, and the run's own values: all that is not trained."""
    where, trained = model.first.path, model.trained
    top = trees.node(model.first.tree, where)
    module = trees.node(top.get("module"), where)
    frozen = trees.shapes(top.get("frozen_param_shapes"), where)
    _add_aliases(found, top, module, trained)
    buffers = {str(name) for name in trees.row(top.get("buffer_names") or [], where)}
    found.buffers |= {f"model/{name}" for name in buffers}
    for key, value in module.items():
        name = str(key)
        if name in trained or f"model/{name}" in found.aliases or (model.cut and name not in buffers):
            continue
        found.add(f"model/{name}", value)
        _compare(found, model, name, value)
    if model.cut:
        _add_frozen(found, model, frozen)
    if absent := [name for name in frozen if f"model/{name}" not in found.tensors]:
        found.notes.append(f"{len(absent)} frozen parameters were left out when this was saved: {absent[0]} ...")
    if any(isinstance(copy := module.get(name), Stored) and copy.dtype != "F32" for name in trained):
        found.notes.append("the weights are the fp32 master copies; the copies in lower precision are not listed.")
    for key, value in top.items():
        if key not in STRUCTURE:
            _add_tree(found, str(key), value)


def add_groups(found: Arranged, shapes: list[Shapes], rank: RankFile, key: str) -> None:
    """Hyper-parameters with the names of their parameters. A group's `params` are numbers of flat tensors."""
    state = trees.at(rank.tree, rank.path, "optimizer_state_dict")
    base = trees.at(state, rank.path, key) if key else state
    if isinstance(base, dict) and "param_groups" in base:
        add_named_groups(found, shapes, trees.row(base, rank.path, "param_groups"), rank.path)
    else:
        found.notes.append("the hyper-parameters of the parameter groups are not in an elastic checkpoint.")
    for name, value in trees.node(state, rank.path).items():
        if isinstance(value, bool | int | float | str) or name == "loss_scaler":
            _add_tree(found, f"optimizer/{name}", value)


def add_named_groups(found: Arranged, shapes: list[Shapes], groups: list[Tree], where: str) -> None:
    listing: list[Plain] = []
    for at, group in enumerate(groups):
        members: list[Plain] = []
        for number in trees.row(group, where, "params"):
            if type(number) is not int or not 0 <= number < len(shapes):
                raise Damaged(f"{where}: a parameter group lists the flat tensor {number}, there are {len(shapes)}.")
            members += shapes[number]
        listing.append({"params": members, **hyper(group)})
        for key, value in tensors(group, at).items():
            found.add(f"other/optimizer.{key}", value)
    found.objects["optimizer/param_groups"] = listing


def loaded(path: str) -> RankFile:
    opened = saved.load(path)
    return RankFile(path, plain.tree(opened, opened.tree))


def _files(folder: str, pattern: re.Pattern[str]) -> dict[int, str]:
    """Files by data-parallel rank."""
    found: dict[int, str] = {}
    for name in listed(folder):
        if match := pattern.fullmatch(name):
            if int(match[2]):
                raise Unsupported(
                    f"{os.path.join(folder, name)}: of a model that is also cut by tensor or pipeline parallelism; how "
                    f"is not in the files. Convert it with DeepSpeed's ds_to_universal."
                )
            rank, path = int(match[1] or 0), os.path.join(folder, name)
            if rank in found and pattern is MODEL and same(found[rank], path):
                continue  # one model file under the names that two stages have for it
            if rank in found:
                raise Damaged(
                    f"{os.path.join(folder, name)}: a second file of rank {rank} beside "
                    f"{os.path.basename(found[rank])}: one is left from another save; remove the older one."
                )
            found[rank] = path
    return found


def _expect_world(rank: RankFile, world: int) -> None:
    state = trees.node(rank.tree, rank.path, "optimizer_state_dict")
    said = state.get("partition_count", world)
    if "ds_zero_partition_groups" not in state and any(
        n != world for n in (said if isinstance(said, list) else [said])
    ):
        raise Damaged(
            f"{rank.path}: is a part of another world than {world} ranks, which the model's file names. It is left "
            f"from another save; copy the right one."
        )


def _add_aliases(found: Arranged, top: Node, module: Node, trained: Shapes) -> None:
    """Other names of trained parameters: as the file lists them, or, in older ones, by the bytes they share."""
    shared = top.get("shared_params")
    for alias, name in shared.items() if isinstance(shared, dict) else ():
        found.aliases[f"model/{alias}"] = f"model/{name}"
    held = {key: value for key, value in module.items() if isinstance(value, Stored) and 0 not in value.shape}
    copies = {value.parts: key for key, value in held.items() if key in trained}
    for key, value in held.items():
        if key not in trained and value.parts in copies:
            found.aliases.setdefault(f"model/{key}", f"model/{copies[value.parts]}")


def _compare(found: Arranged, model: Model, name: str, value: Tree) -> None:
    """Buffers can differ from rank to rank; say so."""
    for other in model.files[1:]:
        theirs = trees.at(other.tree, other.path, "module", name)
        if not isinstance(value, Stored) or not isinstance(theirs, Stored):
            return
        if value.parts[0][1].crc32 != theirs.parts[0][1].crc32:
            found.notes.append(f"the ranks hold different values of the buffer {name!r}; rank 0's are listed.")
            return


def _add_frozen(found: Arranged, model: Model, shapes: Shapes) -> None:
    """Stage 3: every rank holds a part of each frozen parameter."""
    for name, shape in shapes.items():
        parts, dtype = [], "F32"
        for rank, file in enumerate(model.files):
            held = trees.node(file.tree, file.path, "frozen_param_fragments").get(name)
            if not isinstance(held, Stored):
                return
            part = zero.piece(name, shape, 0, len(model.files), rank)
            parts += saved.part_of(held, part.start, shape, part.first, part.count)
            dtype = held.dtype
        found.add(f"model/{name}", Stored(dtype, shape, tuple(parts)))


def _add_tree(found: Arranged, name: str, value: Tree) -> None:
    """A value of the client's: tensors in it get names of their own."""
    inner = names.arranged({name: value}, found.where, has_model=False)
    for key, stored in inner.tensors.items():
        found.add(f"other/{key.removeprefix('other/')}", stored)
    found.objects |= {
        key if key == name else f"{name}/{key}": plain_value for key, plain_value in inner.objects.items()
    }
    found.unknown += inner.unknown


def _without_zero(folder: str, model: Model) -> Checkpoint:
    """Stage 0: one file with everything, as torch.save would have it."""
    tree = dict(trees.node(model.first.tree, model.first.path))
    for key in STRUCTURE - {"module", "optimizer"}:
        tree.pop(key, None)
    return names.arranged(tree, folder).checkpoint("deepspeed")
