"""`everstep show`: the state at a step as the files describe it, without computing it."""

from typing import Any

from everstep.cli import text
from everstep.cli.look import Hyper, branch, fold, heads, hyper_of, opened
from everstep.errors import Damaged, StepNotHeld
from everstep.recover import choose
from everstep.recover.choose import Route
from everstep.store import base
from everstep.store.disk import Disk


def show(url: str, step: int | None, *, as_json: bool) -> None:
    with opened(url) as (disk, path, epoch):
        inventory = branch(disk, path, epoch)
        routes = choose.routes(inventory, step)
        if not routes:
            raise StepNotHeld(f"{path}: the run holds no step yet.")
        route, index, notes = _first_good(disk, inventory.manifest.writer, routes)
        state = describe(disk, route, index, notes)
    if as_json:
        text.echo_json(state)
    else:
        _print(path, state)


def _first_good(disk: Disk, rank: int, routes: list[Route]) -> tuple[Route, base.Index, list[str]]:
    """The route that a restore would take, as far as indexes tell."""
    notes: list[str] = []
    for at, route in enumerate(routes):
        try:
            return route, base.load(disk, rank, route.base), notes
        except Damaged as damaged:
            if at + 1 == len(routes):
                raise
            notes.append(f"{damaged} An older base is used instead.")
    raise AssertionError(routes)


def describe(disk: Disk, route: Route, index: base.Index, notes: list[str]) -> dict[str, Any]:
    """Everything that `show` says, as JSON holds it."""
    start, count = f"base {index.step}", len(route.records)
    through = start if not count else f"{start} + {text.count(count, 'record')}"
    hyper: Hyper = hyper_of(index)
    said: dict[tuple[str, int], str] = {}
    context = {name: (tree, start) for name, tree in index.content.context.items()}
    tensors = {
        stored.tensor.name: _tensor(stored.tensor, stored.digest if not count else None, through)
        for stored in index.tensors
    }
    tensors |= {
        name: {**item, "from": start} for name, item in tensors.items() if name.startswith(("context/", "hyper/"))
    }
    parameters, state = index.content.parameters, index.content.state
    for located, head in heads(disk, route.records):
        origin = f"record {located.step}"
        said.update({(key, at): origin for key, at, *_ in fold(hyper, head)})
        for name, tree in head.context.items():
            context[name] = (tree, origin)
        tensors |= {b.name: _tensor(b, None, origin) for b in head.blobs if b.name.startswith("context/")}
        parameters, state = head.parameters, head.state or ""
    return {
        "step": route.step,
        "base": index.step,
        "epoch": index.epoch,
        "records": count,
        "from": through,
        "parameters_digest": parameters,
        "state_digest": state or None,
        "tensors": [{"name": name, **item} for name, item in tensors.items()],
        "optimizers": [_optimizer(entry, hyper, said, start) for entry in index.content.optimizers],
        "context": [
            {"name": name, "value": text.value(tree), "from": origin} for name, (tree, origin) in context.items()
        ],
        "aliases": index.content.aliases,
        "versions": index.content.versions,
        "notes": notes,
    }


def _optimizer(
    entry: base.OptimizerEntry, hyper: Hyper, said: dict[tuple[str, int], str], start: str
) -> dict[str, Any]:
    groups = [
        {"parameters": len(group.parameters), "hyper": values, "from": said.get((entry.key, at), start)}
        for at, (group, values) in enumerate(zip(entry.groups, hyper[entry.key], strict=False))
    ]
    return {"name": entry.key, "kind": entry.kind, "groups": groups}


def _tensor(tensor: Any, digest: str | None, origin: str) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "digest": digest,
        "from": origin,
    }


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _print(path: str, state: dict[str, Any]) -> None:
    text.echo(f"{path}: step {state['step']} = {state['from']}, epoch {state['epoch']}")
    where = "record" if state["records"] else "base"
    text.echo(f"parameters digest {state['parameters_digest']} (from the {where})")
    rows = [
        [t["name"], t["dtype"], _shape(t["shape"]), text.size(t["bytes"]), t["digest"] or "-", t["from"]]
        for t in state["tensors"]
    ]
    total = sum(t["bytes"] for t in state["tensors"])
    text.echo(f"\n{text.count(len(rows), 'tensor')}, {text.size(total)}")
    text.echo_table(["name", "dtype", "shape", "size", "digest", "from"], rows, left="name dtype digest from")
    for optimizer in state["optimizers"]:
        text.echo(f"\noptimizer {optimizer['name']}: {optimizer['kind']}")
        for at, group in enumerate(optimizer["groups"]):
            values = ", ".join(f"{name}={text.value(item, 40)}" for name, item in group["hyper"].items())
            text.echo(f"  group {at}, {text.count(group['parameters'], 'parameter')}, from {group['from']}: {values}")
    text.echo(f"\n{text.count(len(state['context']), 'context item')}")
    text.echo_table(
        ["name", "from", "value"],
        [[c["name"], c["from"], c["value"]] for c in state["context"]],
        left="name from value",
    )
    text.echo("\nwritten by " + ", ".join(f"{name} {value}" for name, value in state["versions"].items() if value))
    for note in state["notes"]:
        text.echo(f"note: {note}")
