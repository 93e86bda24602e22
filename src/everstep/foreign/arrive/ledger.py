"""What an import says of itself: what came over, what the source does not have, what of it was left behind."""

from collections.abc import Iterable
from dataclasses import dataclass

from everstep.foreign.arrive import kinds
from everstep.foreign.arrive.plan import Plan
from everstep.foreign.arrive.wishes import Wishes
from everstep.foreign.found import Checkpoint
from everstep.foreign.tiling import some

KEEP = "resume with everstep.Settings(unmatched='keep') to begin it anew"


@dataclass(frozen=True, slots=True)
class Ledger:
    imported: tuple[str, ...]
    absent: tuple[str, ...]
    left: tuple[str, ...]


def ledger(checkpoint: Checkpoint, plan: Plan, wishes: Wishes) -> Ledger:
    """Every kind of state is in one of the three lists."""
    return Ledger(tuple(_imported(plan)), tuple(_absent(plan, wishes)), tuple(_left(checkpoint, plan, wishes)))


def _imported(plan: Plan) -> Iterable[str]:
    parts = plan.parts
    if plan.counted:
        yield f"step {plan.step}, from {plan.counted}"
    masters = f", {plan.masters} of them float32 masters" if plan.masters else ""
    yield f"{len(parts.parameters)} parameters{masters}"
    if parts.aliases:
        yield f"{len(parts.aliases)} further names of tied parameters: {some(parts.aliases)}"
    if parts.buffers:
        yield f"{len(parts.buffers)} buffers: {some(parts.buffers)}"
    if parts.extra:
        yield f"the states of {len(parts.extra)} modules"
    for key, one in plan.optimizers.items():
        held = sorted({state for states in one.state.values() for state in states})
        said = f"optimizer {key!r}: {one.kind}, {', '.join(held) or 'no state yet'} of {len(one.state)} parameters"
        yield f"{said}, {len(one.groups)} param groups with hyper-parameters" if one.told else said
    yield from (f"{name}" for name in plan.content.context if name.startswith("state/"))


def _absent(plan: Plan, wishes: Wishes) -> Iterable[str]:
    if not plan.counted:
        yield "the number of steps done: the run begins at 0; say it with --step"
    for key, one in plan.optimizers.items():
        if not one.told:
            yield f"hyper-parameters of optimizer {key!r}: the program's own are kept"
    if wishes.optimizer == kinds.NONE:
        yield f"the optimizer, left behind as asked: {KEEP}"
    elif not plan.optimizers:
        yield f"optimizer state and hyper-parameters: {KEEP}"
    yield "random number generators: the program's own are kept"


def _left(checkpoint: Checkpoint, plan: Plan, wishes: Wishes) -> Iterable[str]:
    used = {
        f"other/optimizer.param_groups.{'.'.join(name.split('/')[2:])}"
        for name in plan.tensors if name.startswith("hyper/")
    }  # fmt: skip
    names = dict.fromkeys(part.tensor.name for part in checkpoint.tensors if part.tensor.name.startswith("other/"))
    if beside := [name for name in names if name not in used]:
        yield f"{len(beside)} tensors that are neither of the model nor of its optimizer: {some(beside)}"
    taken = {name for _, name in wishes.state} | {plan.counted}
    held = [name for name, value in checkpoint.objects.items() if "/" not in name and value is not None]
    if values := [name for name in held if name not in taken]:
        yield f"{len(values)} values: {some(values)}; '--state KEY=VALUE' takes one over as the program's state=KEY"
    yield from checkpoint.unknown
