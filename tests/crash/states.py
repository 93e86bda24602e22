"""What a power cut can leave of the effects that wait: any of them, torn at sectors, with sizes of their own.

Stricter than ext4, which keeps the order of names: here any subset may get through. One rename is one effect, and of
two effects on one name the later wins. A file's size may be what its surviving sectors need, all of it with zeros
in the holes, or short of either.
"""

import itertools
import random
from collections.abc import Iterator

from tests.crash.simdisk import DIRECTORY, Naming, SimDisk, Write, lay, rename

SECTOR = 512
EXHAUSTIVE_MAX = 12
NATURAL, FULL, SHORT = range(3)

Unit = Naming | Write


def crash_states(
    disk: SimDisk, rng: random.Random, *, limit: int, newest_only: bool, exhaustive_max: int = EXHAUSTIVE_MAX
) -> Iterator[dict[str, bytes]]:
    """The files of each possible state: all up to `exhaustive_max` waiting effects, `limit` samples above.

    With `newest_only`, states without the newest effect are left out: they were possible before it, too.
    """
    units: list[Unit] = []
    newest = 0
    for effect in disk.kernel.effects:
        parts = sectors(effect) if isinstance(effect, Write) else [effect]
        newest = ((1 << len(parts)) - 1) << len(units)
        units += parts
    grown = sorted({unit.inode for unit in units if isinstance(unit, Write) and not unit.mark})
    for mask, sizes in _choices(len(units), len(grown), rng, limit, exhaustive_max):
        if newest_only and not mask & newest:
            continue
        state = _state(disk, units, mask, dict(zip(grown, sizes, strict=True)), rng)
        if state is not None:
            yield state


def sectors(write: Write) -> list[Unit]:
    """The write in parts that reach the disk or not, each as a whole."""
    parts: list[Unit] = []
    at, end = write.offset, write.offset + len(write.data)
    while at < end:
        stop = min(end, (at // SECTOR + 1) * SECTOR)
        parts.append(Write(write.inode, at, write.data[at - write.offset : stop - write.offset], write.mark))
        at = stop
    return parts


def _choices(
    units: int, grown: int, rng: random.Random, limit: int, exhaustive_max: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    if units <= exhaustive_max:
        yield from itertools.product(range(1 << units), itertools.product((NATURAL, FULL, SHORT), repeat=grown))
        return
    everything = (1 << units) - 1
    for at in range(limit):
        # uniform masks hardly ever keep or lose all but one: ask for those as well
        mask = rng.getrandbits(units)
        if at % 3 == 1:
            mask = everything & ~(1 << rng.randrange(units))
        elif at % 3 == 2:
            mask = 1 << rng.randrange(units)
        yield mask, tuple(rng.randrange(3) for _ in range(grown))


def _state(
    disk: SimDisk, units: list[Unit], mask: int, sizes: dict[int, int], rng: random.Random
) -> dict[str, bytes] | None:
    """The files, or None when these sizes give a state that other sizes give as well."""
    names = dict(disk.kernel.named)
    durable = disk.kernel.durable
    contents: dict[int, bytearray] = {}
    for bit, unit in enumerate(units):
        if not mask >> bit & 1:
            continue
        if isinstance(unit, Naming):
            rename(names, unit)
        else:
            if unit.inode not in contents:
                contents[unit.inode] = bytearray(durable[unit.inode])
            lay(contents[unit.inode], unit.offset, unit.data)
    for inode, choice in sizes.items():
        old, full = len(durable[inode]), len(disk.kernel.cache[inode])
        natural = len(contents[inode]) if inode in contents else old
        if choice == FULL:
            if natural == full:
                return None
            contents.setdefault(inode, bytearray(durable[inode])).extend(bytes(full - natural))
        elif choice == SHORT:
            if natural <= old + 1:
                return None
            del contents[inode][rng.randrange(old + 1, natural) :]
    return {
        f"{path}/" if inode == DIRECTORY else path: bytes(contents[inode])
        if inode in contents
        else durable.get(inode, b"")
        for path, inode in names.items()
        if "/" not in path or path.partition("/")[0] in names
    }
