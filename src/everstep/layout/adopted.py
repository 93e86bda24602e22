"""Layouts that others have written down already: DTensor's placements, Megatron's sharded tensors, DeepSpeed's ZeRO."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from everstep.errors import Misdescribed
from everstep.layout import view as views
from everstep.layout.boxes import Shape
from everstep.layout.language import Flat, Layout, Replicate, Shard, Word
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec
from everstep.layout.splits import Chunk
from everstep.types import Local

ZERO_PAD = 2
"""ZeRO-1 and -2 pad the end of a flat group so that every rank's share begins at an even element, of two bytes each."""


def from_dtensor(model: torch.nn.Module) -> Spec:
    """The spec of a model of DTensors on one mesh; what is an ordinary tensor is the same on every rank.

    Where two axes cut one dimension, DTensor's strided placement says that the later axis cuts first.
    """
    meshes: set[Any] = {held.device_mesh for held in model.parameters() if hasattr(held, "device_mesh")}
    if len(meshes) != 1:
        raise Misdescribed(f"the model's DTensors are on {len(meshes)} meshes; a spec needs one.")
    device_mesh = meshes.pop()
    named = device_mesh.mesh_dim_names or tuple(f"axis{at}" for at in range(device_mesh.ndim))
    mesh = Mesh(tuple(zip(named, device_mesh.shape, strict=True)))
    rules, shapes = [], {}
    for name, held in model.named_parameters():
        placements = getattr(held, "placements", None)
        layout = tuple(map(Replicate, named)) if placements is None else _words(name, named, placements)
        rules.append(Rule(re.escape(name), layout))
        shapes[name] = tuple(held.shape)
    aliases = _aliases(model)
    return Spec(mesh, tuple(rules), aliases, {**shapes, **{alias: shapes[name] for alias, name in aliases.items()}})


def _words(name: str, axes: Sequence[str], placements: Sequence[Any]) -> Layout:
    later: list[Word] = []
    words: list[Word] = []
    for axis, placement in zip(axes, placements, strict=True):
        if placement.is_partial():
            raise Misdescribed(f"{name!r}: a DTensor with partial sums ({placement}) is not a value yet. Reduce it.")
        if placement.is_replicate():
            words.append(Replicate(axis))
        elif hasattr(placement, "split_factor"):
            later.append(Shard(axis, placement.dim, Chunk()))
        else:
            words.append(Shard(axis, placement.dim, Chunk()))
    return (*words, *reversed(later))


def _aliases(model: torch.nn.Module) -> dict[str, str]:
    first = {id(held): name for name, held in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(held)] for name, held in every if first[id(held)] != name}


class ShardedTensor(Protocol):
    """What megatron.core.dist_checkpointing says of a tensor; read, not imported."""

    key: str
    global_shape: Shape
    global_offset: Shape
    local_shape: Shape
    prepend_axis_num: int
    flattened_range: slice | None


def from_megatron(sharded: Mapping[str, ShardedTensor]) -> dict[str, Local]:
    """What this rank holds, from the `sharded_state_dict()` of a Megatron model: names in the program to its tensors.

    The keys become the names of the logical tensors, so pipeline stages and experts find each other.
    """
    return {name: _megatron(told) for name, told in sharded.items() if hasattr(told, "global_offset")}


def _megatron(told: ShardedTensor) -> Local:
    shape, more = tuple(told.global_shape), int(told.prepend_axis_num)
    local = (1,) * more + tuple(told.local_shape)
    if len(local) != len(shape):
        raise Misdescribed(f"{told.key!r}: a local shape of {told.local_shape} in {shape} with {more} axes before it.")
    view = views.full(shape)
    for axis, (start, length) in enumerate(zip(told.global_offset, local, strict=True)):
        held = max(0, min(length, shape[axis] - start))  # what leaves the whole is padding
        view = view.narrow(axis, min(start, shape[axis]), held).pad(axis, length)
    for _ in range(more):
        view = view.drop(0)
    flat = getattr(told, "flattened_range", None)
    if flat is None:
        return Local(told.key, shape, view.shape, tuple(view.lower()))
    pieces = view.lower_flat(flat.start, flat.stop, 0)
    return Local(told.key, shape, (flat.stop - flat.start,), tuple(pieces))


def from_deepspeed(groups: Sequence[Mapping[str, Shape]], *, stage: int, ranks: int) -> Spec:
    """The spec of the flat shards that ZeRO keeps: of each param group its parameters in order, with their shapes.

    Stage 3 cuts each parameter by itself. Stages 1 and 2 cut a group's parameters, laid end to end.
    """
    if stage not in (1, 2, 3):
        raise Misdescribed(f"ZeRO has stages 1, 2 and 3, not {stage!r}.")
    rules = [
        Rule(re.escape(name), (Flat("dp") if stage == 3 else Flat("dp", f"group {at}", pad=ZERO_PAD),))
        for at, group in enumerate(groups) for name in group
    ]  # fmt: skip
    shapes = {name: tuple(shape) for group in groups for name, shape in group.items()}
    return Spec(Mesh((("dp", ranks),)), tuple(rules), shapes=shapes)
