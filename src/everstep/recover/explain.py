"""What a resume onto another layout would read, before any device is taken: by whom, from whom, how much.

Reads indexes and the log's heads, never a tensor. It speaks of the loader as it is: a rank recovers the whole part of
each writer that holds something it wants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.errors import StepNotHeld
from everstep.layout import boxes
from everstep.layout.boxes import Shape
from everstep.layout.owners import read_from
from everstep.layout.spec import Spec
from everstep.recover import choose
from everstep.recover.cohort import inventories, stand
from everstep.store import base
from everstep.store.disk import Disk
from everstep.types import DTYPE_BYTES, Box, Tensor


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer's part at the step: a base, and the records that lead on."""

    rank: int
    base_step: int
    base_bytes: int
    records: int
    record_bytes: int
    held: dict[str, Tensor]

    @property
    def nbytes(self) -> int:
        return self.base_bytes + self.record_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """What one rank of the new layout wants and reads. `absent`: what nobody holds, by name."""

    rank: int
    wanted_bytes: int
    read_bytes: int
    writers: tuple[int, ...]
    peak_bytes: int
    absent: tuple[str, ...]

    @property
    def amplification(self) -> float:
        return self.read_bytes / self.wanted_bytes if self.wanted_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Explained:
    step: int
    writers: tuple[Writer, ...]
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]


def writers(disk: Disk, url: str, step: int | None = None) -> tuple[int, tuple[Writer, ...]]:
    """The step that would be resumed, and who holds it."""
    found = stand(disk, url, step)
    held = inventories(disk, url, found.epochs) if found is not None else None
    if found is None or held is None:
        raise StepNotHeld(f"{url}: the run holds no step yet.")
    parts = []
    for rank, inventory in enumerate(held):
        route = choose.routes(inventory, found.step)[0]
        index = base.load(disk, rank, route.base)
        records = sum(record.frame.nbytes for record in route.records)
        parts.append(
            Writer(
                rank, route.base.step, route.base.nbytes, len(route.records), records,
                {stored.tensor.name: stored.tensor for stored in index.tensors},
            )
        )  # fmt: skip
    return found.step, tuple(parts)


def shapes(parts: Sequence[Writer]) -> dict[str, Shape]:
    """Of every parameter of the run, the shape of the whole."""
    prefix = "model/"
    return {
        name.removeprefix(prefix): tensor.shape
        for part in parts for name, tensor in part.held.items() if name.startswith(prefix)
    }  # fmt: skip


def explain(step: int, parts: Sequence[Writer], spec: Spec, names: Mapping[str, Shape]) -> Explained:
    """For each rank of the spec's mesh. `names`: the program's tensors, with the shapes of the logical ones."""
    readings = tuple(_reading(rank, parts, spec, names) for rank in range(spec.mesh.size))
    notes = []
    if spec.mesh.size > len(parts):
        notes.append(f"ranks {len(parts)} to {spec.mesh.size - 1} are new: they keep random numbers of their own.")
    if spec.mesh.size < len(parts):
        notes.append(f"random numbers and state= of writers {spec.mesh.size} to {len(parts) - 1} are not used.")
    return Explained(step, tuple(parts), readings, tuple(notes))


def _reading(rank: int, parts: Sequence[Writer], spec: Spec, names: Mapping[str, Shape]) -> Reading:
    wanted: dict[str, list[Box]] = {}
    nbytes = 0
    for local in spec.locals(names, rank).values():
        own = [piece.box for piece in local.pieces]
        wanted.setdefault(local.logical, []).extend(own)
        nbytes += sum(map(boxes.volume, own)) * _width(parts, local.logical)
    held = [{name.removeprefix("model/"): tensor.box for name, tensor in part.held.items()} for part in parts]
    used, absent = read_from(wanted, held, rank if rank < len(parts) else 0)
    peak = max((parts[at].base_bytes for at in used), default=0)
    return Reading(rank, nbytes, sum(parts[at].nbytes for at in used), tuple(used), nbytes + peak, tuple(absent))


def _width(parts: Sequence[Writer], name: str) -> int:
    """Bytes per element of a parameter with all its optimizer state."""
    for part in parts:
        tensor = part.held.get(f"model/{name}")
        if tensor is not None:
            states = [
                other for key, other in part.held.items()
                if key.startswith("optimizer/") and key.split("/", 2)[2].rpartition("/")[0] == name
                and other.shape == tensor.shape
            ]  # fmt: skip
            return DTYPE_BYTES[tensor.dtype] + sum(DTYPE_BYTES[state.dtype] for state in states)
    return 0
