"""The model's part of a checkpoint under the program's names: parameters, buffers, modules' own states, tied names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from everstep.errors import Misuse, Unsupported
from everstep.foreign.arrive import rules, stream
from everstep.foreign.arrive.rules import Rename
from everstep.foreign.arrive.wishes import Wishes
from everstep.foreign.found import Checkpoint, Stored
from everstep.types import Box

NOT_TRAINED = frozenset({"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"})
"""Element types that have no gradient: such tensors of a state dict are buffers."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What torch's own layers of normalisation call their buffers."""
EXTRA = "_extra_state"


@dataclass(slots=True)
class Model:
    """Tensors by the names that the program has for them, in the checkpoint's order."""

    parameters: dict[str, Stored] = field(default_factory=dict)
    buffers: dict[str, Stored] = field(default_factory=dict)
    extra: dict[str, Stored] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


def grouped(checkpoint: Checkpoint) -> dict[str, Stored]:
    """Every logical tensor once, with all its parts."""
    parts: dict[str, Stored] = {}
    for found in checkpoint.tensors:
        tensor = found.tensor
        known = parts.get(tensor.name)
        held = known.parts if known is not None else ()
        parts[tensor.name] = Stored(tensor.dtype, tensor.shape, (*held, (tensor.box, found.place)))
    return parts


def unstacked(tensors: Mapping[str, Stored], stacks: tuple[Rename, ...]) -> dict[str, Stored]:
    """Tensors whose first axis is a layer, one for each; '#' in the new name is the layer's number."""
    found: dict[str, Stored] = {}
    used: set[str] = set()
    for name, stored in tensors.items():
        prefix, own = _parted(name)
        for rule in stacks:
            new = rule.new(own)
            if new is None:
                continue
            if "#" not in new or not stored.shape:
                raise Misuse(f"{rule.option} {rule.text!r}: {own!r} has no axis to number, or its new name no '#'.")
            used.add(rule.text)
            found |= {f"{prefix}{new.replace('#', str(at))}": _layer(stored, at) for at in range(stored.shape[0])}
            break
        else:
            found[name] = stored
    for rule in stacks:
        if rule.text not in used:
            raise rules.unused(rule.option, rule.text, (_parted(name)[1] for name in tensors))
    return found


def model(checkpoint: Checkpoint, tensors: Mapping[str, Stored], new: Mapping[str, str], wishes: Wishes) -> Model:
    """The model under the names of `new`. Who has optimizer state is decided later, and is a parameter in any case."""
    result = Model()
    told = {new[name.removeprefix("model/")] for name in checkpoint.buffers if name.removeprefix("model/") in new}
    for name, stored in _named(tensors, new):
        if name == EXTRA or name.endswith(f".{EXTRA}"):
            result.extra[name.removesuffix(EXTRA)] = stored
        elif name in told or stored.dtype in NOT_TRAINED or name.rpartition(".")[2] in STATISTICS:
            result.buffers[name] = stored
        else:
            result.parameters[name] = stored
    for name in rules.chosen("--buffers", (*result.parameters, *result.buffers), wishes.buffers):
        if name in result.parameters:
            result.buffers[name] = result.parameters.pop(name)
    for alias, name in checkpoint.aliases.items():
        result.aliases[new[alias.removeprefix("model/")]] = new[name.removeprefix("model/")]
    for alias, name in wishes.ties:
        _tie(result, alias, name)
    return result


def _named(tensors: Mapping[str, Stored], new: Mapping[str, str]) -> Iterator[tuple[str, Stored]]:
    for name, stored in tensors.items():
        if name.startswith("model/"):
            yield new[name.removeprefix("model/")], stored


def _parted(name: str) -> tuple[str, str]:
    """What stands before a parameter's own name, and that name."""
    kind, _, rest = name.partition("/")
    if kind == "model":
        return "model/", rest
    if kind.partition(".")[0] == "optimizer":
        state, _, own = rest.partition("/")
        return f"{kind}/{state}/", own
    return "", name


def _layer(stored: Stored, at: int) -> Stored:
    """One index of the first axis. A box is in row-major order, so this part of it is in one piece."""
    parts = []
    for box, place in stored.parts:
        if box.low[0] <= at < box.high[0]:
            row = place.nbytes // (box.high[0] - box.low[0])
            here = replace(place, offset=place.offset + (at - box.low[0]) * row, nbytes=row)
            parts.append((Box(box.low[1:], box.high[1:]), here))
    return Stored(stored.dtype, stored.shape[1:], tuple(parts))


def _tie(result: Model, alias: str, name: str) -> None:
    """`alias` is another name of `name`. A checkpoint that has both must have the same bits in both."""
    if name not in result.parameters:
        raise Misuse(f"--tie {alias}={name}: the checkpoint has no parameter {name!r}.")
    copy = result.parameters.pop(alias, None)
    if copy is not None and not stream.same(copy, result.parameters[name]):
        raise Unsupported(
            f"--tie {alias}={name}: the two have different values in the checkpoint. Nothing was written."
        )
    result.aliases[alias] = name
