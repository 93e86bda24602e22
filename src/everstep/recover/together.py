"""A state that several writers hold together, as whole tensors, without the training program."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from everstep.errors import Damaged
from everstep.layout import boxes
from everstep.layout.versions import apart, kinds
from everstep.recover.diverged import refuse_diverged
from everstep.recover.ledger import Ledger
from everstep.recover.offline import Part, Restored
from everstep.recover.parts import view
from everstep.recover.reduce import one_of
from everstep.types import Box, whole


def joined(parts: Sequence[Part]) -> Restored:
    """Every tensor in one piece. Damaged when a part is missing, or two writers hold different values of the same."""
    began = time.perf_counter()
    refuse_diverged([part.index for part in parts])
    cuts = [(rank, *cut) for rank, part in enumerate(parts) for cut in _cut(part)]
    _refuse_holes(cuts)
    tensors: dict[str, torch.Tensor] = {}
    held: dict[str, list[Box]] = {}
    notes: list[str] = []
    for rank, name, shape, box, tensor in cuts:
        if name not in tensors:
            tensors[name] = torch.empty(shape, dtype=tensor.dtype)
        elif not _agree(tensors[name], held[name], box, tensor):
            if not name.startswith("buffer/"):
                raise Damaged(f"{name}: writer {rank} holds other values than those before it. Nothing is handed out.")
            notes.append(f"{name}: writer {rank} has values of its own; those of the first writer are given.")
            continue
        tensors[name][boxes.slices(box)] = tensor
        held.setdefault(name, []).append(box)
    several = apart(held for part in parts for held in part.held.values())
    for name in tensors:
        one = several.get(_parsed(name)[1])
        if one is not None and tensors[name].shape == one.logical_shape:
            tensors[name] = one_of(tensors[name], one.versions[0])
    notes += [f"{told}: the {how} of {count} versions is given." for count, how, told in kinds(several.values())]
    first = parts[0].restored
    context = {**first.context, "optimizers": _groups(parts)}
    ledger = _ledger([part.restored.ledger for part in parts], tuple(notes), time.perf_counter() - began)
    return Restored(first.step, tensors, context, ledger)


def _refuse_holes(cuts: Sequence[tuple[int, str, tuple[int, ...], Box, torch.Tensor]]) -> None:
    """Before any memory is taken: a shape is only believed where all of it is there."""
    shapes: dict[str, tuple[int, ...]] = {}
    held: dict[str, list[Box]] = {}
    for rank, name, shape, box, _ in cuts:
        if shapes.setdefault(name, shape) != shape:
            raise Damaged(f"{name}: writer {rank} says its shape is {shape}, others say {shapes[name]}.")
        held.setdefault(name, []).append(box)
    for name, shape in shapes.items():
        if absent := boxes.missing(whole(shape), held[name]):
            raise Damaged(f"{name}: no writer holds {absent[0].low}..{absent[0].high}. Nothing is handed out.")


def _cut(part: Part) -> Iterator[tuple[str, tuple[int, ...], Box, torch.Tensor]]:
    """Every tensor of a writer as parts of logical ones: name and shape of the whole, which box, and its values.

    Optimizer state is cut as its parameter is.
    """
    for name, tensor in part.restored.tensors.items():
        kind, parameter, ending = _parsed(name)
        held = part.held.get(parameter)
        full = f"{kind}{held.logical}{ending}" if held is not None else name
        if held is None or not tensor.dim() or tuple(tensor.shape) != held.shape:
            told = part.described.get(name)
            shape, box = (tuple(tensor.shape), whole(tensor.shape)) if told is None else (told.shape, told.box)
            yield full, shape, box, tensor
            continue
        if not held.pieces:
            yield full, held.logical_shape, Box((0,) * tensor.dim(), (0,) * tensor.dim()), tensor
        for piece in held.pieces:
            yield full, held.logical_shape, piece.box, view(tensor, held, piece)


def _parsed(name: str) -> tuple[str, str, str]:
    """What stands before a parameter's name, the name, and what follows it; no name if it is no parameter's."""
    if name.startswith("model/"):
        return "model/", name.removeprefix("model/"), ""
    if name.startswith("optimizer/"):
        key, rest = name.split("/", 2)[1:]
        parameter, _, state = rest.rpartition("/")
        return f"optimizer/{key}/", parameter, f"/{state}"
    return name, "", ""


def _agree(known: torch.Tensor, held: Sequence[Box], box: Box, tensor: torch.Tensor) -> bool:
    """Whether what is known already has the same bits wherever the two overlap."""
    if not known.dim():
        return _same(known, tensor)
    for other in held:
        common = boxes.intersect(other, box)
        if common is not None and not _same(known[boxes.slices(common)], tensor[boxes.slices(common, box)]):
            return False
    return True


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Bit for bit: a NaN is the same as itself."""
    bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, two) if t.numel()]
    return not bits or torch.equal(*bits)


def _groups(parts: Sequence[Part]) -> dict[str, list[dict[str, Any]]]:
    """Hyper-parameters by optimizer and group; the parameters of a group are those that any writer has in it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for key, groups in part.restored.context["optimizers"].items():
            known = found.setdefault(key, [])
            for at, group in enumerate(groups):
                if at == len(known):
                    known.append({**group, "params": []})
                names = dict.fromkeys(
                    part.held[name].logical if name in part.held else name for name in group["params"]
                )
                known[at]["params"] += [name for name in names if name not in known[at]["params"]]
    return found


def _ledger(ledgers: Sequence[Ledger], notes: tuple[str, ...], seconds: float) -> Ledger:
    items = {
        (item.name, item.kind): replace(item, origin=f"writer {rank}, {item.origin}")
        for rank, ledger in reversed(list(enumerate(ledgers))) for item in ledger.items
    }  # fmt: skip
    first = ledgers[0]
    return Ledger(
        first.step, min(one.base_step for one in ledgers), max(one.records for one in ledgers), first.replay,
        seconds + sum(one.seconds for one in ledgers), sum(one.replay_seconds for one in ledgers),
        tuple(items.values()), (*notes, *(note for one in ledgers for note in one.notes)),
    )  # fmt: skip
