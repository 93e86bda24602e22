"""`everstep verify` of a checkpoint that another system wrote: is all of it there, and are its bytes what was saved?"""

import os
from typing import Any

from everstep.cli import text
from everstep.cli.progress import waiting
from everstep.dcp import verify as recorded
from everstep.errors import Damaged
from everstep.foreign import recognise
from everstep.foreign.found import Checkpoint, check
from everstep.foreign.found import verify as prove

NOTES_MAX = 10


def is_foreign(url: str) -> bool:
    """Whether this is a file, or a folder without a run in it."""
    return os.path.exists(url) and not os.path.exists(os.path.join(url, "run.json"))


def verify(path: str, *, as_json: bool) -> bool:
    """Whether every tensor is whole and every checksum right. Nothing in the checkpoint is executed."""
    if recorded.recorded(path):
        return _recorded(path, as_json=as_json)
    with waiting("reading"):
        found = recognise.read(path)
        proved, damages = 0, []
        for prove_it in (lambda: check(found), lambda: prove(found)):
            try:
                proved = prove_it() or proved
            except Damaged as damaged:
                damages.append(str(damaged))
    said = described(found, proved, damages)
    if as_json:
        text.echo_json(said)
    else:
        _print(said)
    return not damages


def _recorded(path: str, *, as_json: bool) -> bool:
    """A save of `everstep.dcp`: every byte has a checksum, not only those of tensors."""
    with waiting("reading"):
        proof = recorded.prove(path)
    said = {
        "path": path,
        "kind": "torch.distributed.checkpoint with a record of everstep",
        "tensors": len(proof.tensors),
        "parameters": sum(name.startswith("model.") for name in proof.tensors),
        "bytes": proof.nbytes,
        "proved_bytes": proof.proved,
        "aliases": {},
        "notes": [],
        "damages": proof.damages,
        "good": not proof.damages,
    }
    if as_json:
        text.echo_json(said)
    else:
        _print(said)
    return not proof.damages


def described(found: Checkpoint, proved: int, damages: list[str]) -> dict[str, Any]:
    names = {part.tensor.name for part in found.tensors}
    return {
        "path": found.path,
        "kind": found.kind,
        "tensors": len(names),
        "parameters": sum(name.startswith("model/") for name in names),
        "bytes": sum(part.place.nbytes for part in found.tensors),
        "proved_bytes": proved,
        "aliases": dict(found.aliases),
        "notes": [*found.notes, *(f"not understood, and not executed: {name}" for name in found.unknown)],
        "damages": damages,
        "good": not damages,
    }


def _print(said: dict[str, Any]) -> None:
    text.echo(
        f"{said['path']}: {said['kind']}, {text.count(said['tensors'], 'tensor')}, {text.size(said['bytes'])}, "
        f"of which {text.size(said['proved_bytes'])} have checksums that are right"
    )
    for note in said["notes"][:NOTES_MAX]:
        text.echo(f"note: {note}")
    for damage in said["damages"]:
        text.echo(f"DAMAGED: {damage}")
    text.echo("good" if said["good"] else "NOT GOOD")
