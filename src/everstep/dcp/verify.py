"""`everstep verify` of a checkpoint that `Writer` saved: every byte of every data file against the record. No torch."""

import os
from dataclasses import dataclass, field

from everstep.dcp import names, record
from everstep.dcp.proving import ProvingFile
from everstep.dcp.refusal import refusal
from everstep.errors import Damaged
from everstep.store.disk import LocalDisk


def recorded(path: str) -> bool:
    """Whether what is committed there has a record, or had one before its `.metadata` was changed or lost."""
    if not os.path.isdir(path) or not any(names.RECORD.fullmatch(name) for name in os.listdir(path)):
        return False
    disk = LocalDisk(path)
    try:
        return record.load(disk, path)[1] is not None
    except (Damaged, FileNotFoundError):
        return True
    finally:
        disk.release()


@dataclass(slots=True)
class Proof:
    """What was found: the names of tensors, their bytes with all that lies around them, and how many are right."""

    tensors: tuple[str, ...] = ()
    nbytes: int = 0
    proved: int = 0
    damages: list[str] = field(default_factory=list)


def prove(path: str) -> Proof:
    """Every byte of every data file against its record. Never writes, never executes anything."""
    found = Proof()
    disk = LocalDisk(path)
    try:
        _, held = record.load(disk, path)
        if held is None:
            raise Damaged(f"{path}: no record belongs to its {names.METADATA}.")
        found.tensors = tuple(entry.name for entry in held.tensors)
        found.nbytes = sum(sealed.nbytes for sealed in held.files)
        for number in range(len(held.files)):
            proved, damages = _file(disk, path, held, number)
            found.proved += proved
            found.damages += damages
        record.covered(held.index(path), path)
        record.lengths(disk, held, path)
    except FileNotFoundError:
        found.damages.append(str(refusal(path)))
    except Damaged as damaged:
        found.damages.append(str(damaged))
    finally:
        disk.release()
    return found


def _file(disk: LocalDisk, path: str, held: record.Record, number: int) -> tuple[int, list[str]]:
    sealed, proved, damages = held.files[number], 0, []
    try:
        source = disk.source(sealed.name)
    except OSError:  # `lengths` names it
        return 0, []
    try:
        file = ProvingFile(source, held, number, os.path.join(path, sealed.name))
        block = bytearray(held.block_bytes)
        for at in range(0, min(sealed.nbytes, source.size), held.block_bytes):
            file.seek(at)
            try:
                proved += file.readinto(block)
            except Damaged as damaged:
                damages.append(str(damaged))
    finally:
        source.close()
    return proved, damages
