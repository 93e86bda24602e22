"""What an import will write: every tensor of the base with its source, the rest of the base, and what is said of it.

Nothing is written here, and of the tensors only step counters are read.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from everstep.capture.snapshot import versions
from everstep.codec import tree
from everstep.errors import Misuse, Unsupported
from everstep.foreign.arrive import kinds, rules, stream
from everstep.foreign.arrive.model import Model, grouped, model, unstacked
from everstep.foreign.arrive.optimizer import STEP, Optimizer, Raw, optimizer, raws
from everstep.foreign.arrive.wishes import Wishes
from everstep.foreign.found import Checkpoint, Plain, Stored
from everstep.store import base
from everstep.types import DTYPE_BYTES, Tensor, whole

Source = Stored | bytes
STEPS = ("global_steps", "global_step", "iteration", "step", "train_step")
"""What checkpoints call the number of steps done, the most telling first."""
STEP_MAX = 1 << 40
MASTERS = ("param", "fp32_param")
"""What Megatron calls the float32 copies of parameters that its optimizer steps."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`counted` says who counted the steps; "" when nobody did. `masters`: how many parameters are float32 copies."""

    step: int
    counted: str
    tensors: dict[str, tuple[Tensor, Source]]
    content: base.Content
    parts: Model
    optimizers: dict[str, Optimizer]
    masters: int


def plan(checkpoint: Checkpoint, wishes: Wishes) -> Plan:
    """What the checkpoint becomes under the caller's wishes."""
    tensors = unstacked(grouped(checkpoint), wishes.stacks)
    masters = _masters(checkpoint, tensors)
    found = list(raws(tensors, checkpoint.objects)) if wishes.optimizer != kinds.NONE else []
    found = [(prefix, raw) for prefix, raw in found if raw.states or raw.groups]
    new = rules.renamed(_names(checkpoint, tensors, found), wishes.renames)
    parts = model(checkpoint, tensors, new, wishes)
    keys = ["main"] if len(found) == 1 else [str(at) for at in range(len(found))]
    optimizers = {key: optimizer(raw, parts, new, wishes) for key, (_, raw) in zip(keys, found, strict=True)}
    if not parts.parameters:
        raise Unsupported(f"{checkpoint.path}: holds no parameters of a model. Nothing was written.")
    draft = _Draft()
    content = draft.content(parts, optimizers, _states(checkpoint, wishes))
    step, counted = _step(checkpoint, optimizers, wishes)
    return Plan(step, counted, draft.tensors, content, parts, optimizers, masters)


class _Draft:
    """The base's tensors, as its parts are described."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Tensor, Source]] = {}
        self._far: list[str] = []

    def content(self, parts: Model, optimizers: Mapping[str, Optimizer], states: Mapping[str, Plain]) -> base.Content:
        for name, stored in parts.parameters.items():
            self._put(f"model/{name}", stored)
        context = {f"buffer/{name}": self._put(f"context/buffer/{name}", held) for name, held in parts.buffers.items()}
        context |= {f"extra/{name}": self._put(f"context/extra/{name}", held) for name, held in parts.extra.items()}
        for key, value in states.items():
            context[f"state/{key}"] = tree.encode(value, f"context/state/{key}", lambda _n, _v: False)
        entries = tuple(self._entry(key, one) for key, one in optimizers.items())
        return base.Content(
            optimizers=entries, aliases=dict(parts.aliases), derived=(), context=context, parameters="", state="",
            versions=versions(), far=tuple(self._far),
        )  # fmt: skip

    def _entry(self, key: str, one: Optimizer) -> base.OptimizerEntry:
        groups = tuple(
            base.Group(group.parameters, self._tree(f"hyper/{key}/{at}", group.hyper))
            for at, group in enumerate(one.groups)
        )
        state = {name: self._tree(f"optimizer/{key}/{name}", held) for name, held in one.state.items()}
        for group in one.groups:
            if group.hyper.get("capturable") or group.hyper.get("fused", True):  # then the counter lies on the device
                names = [f"optimizer/{key}/{name}/{STEP}" for name in group.parameters]
                self._far += [name for name in names if name in self.tensors]
        return base.OptimizerEntry(key, one.kind, groups, state)

    def _tree(self, path: str, values: Mapping[str, object]) -> object:
        def put(name: str, item: object) -> bool:
            if isinstance(item, Stored | bytes):
                self._put(name, item)
                return True
            return False

        plain = {key: value for key, value in values.items() if not isinstance(value, bytes)}
        made = tree.encode(plain, path, put)
        for key, value in values.items():  # a tree would keep bytes as they are; these four are a tensor
            if isinstance(value, bytes):
                made[key] = self._put(f"{path}/{key}", value)
        return made

    def _put(self, name: str, source: Source) -> object:
        if isinstance(source, bytes):
            tensor = Tensor(name, "F32", (), whole(()), len(source))
        else:
            nbytes = math.prod(source.shape) * DTYPE_BYTES[source.dtype]
            tensor = Tensor(name, source.dtype, source.shape, whole(source.shape), nbytes)
        if fault := tensor.fault():
            raise Unsupported(f"{fault}. Nothing was written.")
        self.tensors[name] = tensor, source
        return {"$": "tensor", "v": name}


def _names(checkpoint: Checkpoint, tensors: Mapping[str, Stored], found: list[tuple[str, Raw]]) -> list[str]:
    names = [name.removeprefix("model/") for name in tensors if name.startswith("model/")]
    names += [name.removeprefix("model/") for name in checkpoint.aliases]
    stepped = [name for _, raw in found for name in raw.states]
    stepped += [str(name) for _, raw in found for group in raw.groups for name in _params(group)]
    return [*names, *(name for name in stepped if not name.isdecimal())]


def _params(group: Mapping[str, Plain]) -> list[Plain]:
    members = group.get("params")
    return members if isinstance(members, list) else []


def _masters(checkpoint: Checkpoint, tensors: dict[str, Stored]) -> int:
    """Megatron's optimizer keeps float32 copies of the parameters: the weights, that is."""
    count = 0
    if checkpoint.kind.startswith("megatron"):
        for key in MASTERS:
            for name in [name for name in tensors if name.startswith(f"optimizer/{key}/")]:
                tensors[f"model/{name.removeprefix(f'optimizer/{key}/')}"] = tensors.pop(name)
                count += 1
    return count


def _states(checkpoint: Checkpoint, wishes: Wishes) -> dict[str, Plain]:
    found = {}
    for key, name in wishes.state:
        if name not in checkpoint.objects:
            held = ", ".join(repr(known) for known in checkpoint.objects if "/" not in known) or "none"
            raise Misuse(f"--state {key}={name}: the checkpoint has no value {name!r}. It has {held}.")
        found[key] = checkpoint.objects[name]
    return found


def _step(checkpoint: Checkpoint, optimizers: Mapping[str, Optimizer], wishes: Wishes) -> tuple[int, str]:
    """The number of steps done, and who says so."""
    if wishes.step is not None:
        if not 0 <= wishes.step < STEP_MAX:
            raise Misuse(f"--step {wishes.step}: is no number of steps.")
        return wishes.step, "--step"
    for name in STEPS:
        value = checkpoint.objects.get(name)
        if type(value) is int and 0 <= value < STEP_MAX:
            return value, name
    counts = [_count(state[STEP]) for one in optimizers.values() for state in one.state.values() if STEP in state]
    if counts and counts[0] == max(counts) and 0 <= counts[0] < STEP_MAX:
        return int(counts[0]), "the optimizer's own count"
    return 0, ""


def _count(value: object) -> float:
    raw = value if isinstance(value, bytes) else stream.content(value) if isinstance(value, Stored) else b"\0\0\0\0"
    return float(struct.unpack("<f", raw)[0])
