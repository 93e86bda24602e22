"""What a resume onto another layout would read, before any device is taken: by whom, from whom, how much.

Reads indexes and the log's heads, never a tensor. It speaks of the loader as it is in host memory: of a base a rank
reads the tensors that have something it wants, each whole, because its digest is of all of it; where a log follows, the
whole part of each such writer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from everstep.errors import StepNotHeld
from everstep.layout import boxes
from everstep.layout.boxes import Shape
from everstep.layout.owners import order, read_from
from everstep.layout.spec import Spec
from everstep.layout.versions import apart, fitted, kinds, shape_of_one
from everstep.recover import choose
from everstep.recover.cohort import inventories, stand
from everstep.recover.parts import boxes_of
from everstep.store import base
from everstep.store.disk import Disk
from everstep.types import DTYPE_BYTES, Box, DataPlace, Local, Tensor

Held = Mapping[str, Sequence[Box]]
"""Boxes by the logical tensor."""


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer's part at the step: a base, and the records that lead on."""

    rank: int
    base_step: int
    base_bytes: int
    records: int
    record_bytes: int
    held: dict[str, Tensor]
    parameters: dict[str, Local]
    place: DataPlace | None = None

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
                {stored.tensor.name: stored.tensor for stored in index.tensors}, index.held, index.content.place,
            )
        )  # fmt: skip
    return found.step, tuple(parts)


def shapes(parts: Sequence[Writer]) -> dict[str, Shape]:
    """Of every parameter of the run, the shape of the whole."""
    return {held.logical: shape_of_one(held) for part in parts for held in part.parameters.values()}


def explain(step: int, parts: Sequence[Writer], spec: Spec, names: Mapping[str, Shape]) -> Explained:
    """For each rank of the spec's mesh. `names`: the program's tensors, with the shapes of the logical ones."""
    held, widths = [boxes_of(part.parameters) for part in parts], _widths(parts)
    theirs = apart(one for part in parts for one in part.parameters.values())

    def wanted(rank: int) -> dict[str, list[Box]]:
        ours = spec.locals(names, rank)
        return boxes_of({name: fitted(one, theirs.get(one.logical)) for name, one in ours.items()})

    readings = tuple(
        _reading(rank, spec.mesh.size, parts, held, wanted(rank), widths) for rank in range(spec.mesh.size)
    )
    notes = [
        f"{told}: {count} ranks held values of their own. As many get them back; others get the {how}."
        for count, how, told in kinds(theirs.values())
    ]
    return Explained(step, tuple(parts), readings, (*notes, *_generators(parts, spec.mesh.size)))


def _generators(parts: Sequence[Writer], size: int) -> Iterator[str]:
    """Whose random numbers go on, and whose do not."""
    if (place := parts[0].place) is not None:
        yield (
            "random numbers and state= go by the part of the data that a rank reads: who says with Loader or Place "
            f"that it is one of 0 to {place.world - 1} goes on with those of that part, others get derived ones."
        )
    elif size > len(parts):
        new = f"ranks {len(parts)} to {size - 1} are" if size - len(parts) > 1 else f"rank {size - 1} is"
        yield f"{new} new: random numbers are derived there from run, step and rank."
    elif size < len(parts):
        yield f"random numbers and state= of writers {size} to {len(parts) - 1} are not used."


def _reading(
    rank: int, world: int, parts: Sequence[Writer], held: Sequence[Held], wanted: Held, widths: Mapping[str, int]
) -> Reading:
    nbytes = sum(widths.get(name, 0) * boxes.volume(box) for name, own in wanted.items() for box in own)
    used, absent = read_from(wanted, held.__getitem__, order(rank, world, len(parts)))
    rest, read, beside = {name: list(own) for name, own in wanted.items()}, 0, 0
    for at in used:
        part = parts[at]
        needed = {
            name for name, local in part.parameters.items()
            for piece in local.pieces if any(boxes.intersect(box, piece.box) for box in rest.get(local.logical, ()))
        }  # fmt: skip
        whole = bool(part.records and needed)  # a log is replayed for all of a writer's tensors
        taken = {name: tensor for name, tensor in part.held.items() if whole or _owner(name, part) in {None, *needed}}
        read += part.base_bytes if whole else sum(tensor.nbytes for tensor in taken.values())
        read += part.record_bytes
        fits = {name for name in needed if _fits(part.parameters[name], wanted)}
        apart = sum(tensor.nbytes for name, tensor in taken.items() if _owner(name, part) not in fits)
        beside = max(beside, apart + (part.record_bytes // part.records if part.records else 0))
        for local in part.parameters.values():
            for piece in local.pieces:
                left = rest.get(local.logical, [])
                rest[local.logical] = [more for box in left for more in boxes.subtract(box, piece.box)]
    return Reading(rank, nbytes, read, tuple(used), nbytes + beside, tuple(absent))


def _owner(name: str, part: Writer) -> str | None:
    """The parameter that a tensor of a base belongs to; None for what every reader takes."""
    kind, _, rest = name.partition("/")
    parameter = rest if kind == "model" else rest.partition("/")[2].rpartition("/")[0] if kind == "optimizer" else ""
    return parameter if parameter in part.parameters else None


def _fits(theirs: Local, wanted: Mapping[str, Sequence[Box]]) -> bool:
    """Whether a writer's tensor is read straight to its place: one box, that lies in one piece in a wanted one."""
    if len(theirs.pieces) != 1:
        return False
    box = theirs.pieces[0].box
    return any(boxes.in_one_piece(box, own) for own in wanted.get(theirs.logical, ()))


def _widths(parts: Sequence[Writer]) -> dict[str, int]:
    """Bytes per element of each parameter with all its optimizer state."""
    found: dict[str, int] = {}
    for part in parts:
        mine: dict[str, int] = {}
        for name, tensor in part.held.items():
            owner = _owner(name, part)
            if owner is not None and tensor.shape == part.held[f"model/{owner}"].shape:
                mine[owner] = mine.get(owner, 0) + DTYPE_BYTES[tensor.dtype]
        for name, width in mine.items():
            found.setdefault(part.parameters[name].logical, width)
    return found
