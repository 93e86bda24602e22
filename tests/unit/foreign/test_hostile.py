"""Descriptions that somebody changed, checksums and all: our errors or a checked answer come of them, nothing else."""

import io
import random
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.errors import EverstepError
from everstep.foreign.found import check, verify
from everstep.foreign.recognise import read
from tests.unit.foreign import fixtures

CHANGES = 40


def rewritten(content: bytes, rng: random.Random) -> bytes:
    """The same archive with another description, and the right checksum for it."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(target, "w") as written:
        for name in source.namelist():
            member = source.read(name)
            written.writestr(name, changed(member, rng) if name.endswith("data.pkl") else member)
    return target.getvalue()


def changed(content: bytes, rng: random.Random) -> bytes:
    """A few bytes replaced, moved or left out."""
    found = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at, other, length = rng.randrange(len(found)), rng.randrange(len(found)), rng.randrange(1, 30)
        match rng.randrange(3):
            case 0:
                found[at] = rng.randrange(256)
            case 1:
                found[at : at + length] = found[other : other + length]
            case _:
                del found[at : min(at + length, len(found) - 1)]
    return bytes(found)


@pytest.mark.parametrize("name", ["plain", "zero1", "zero2", "zero3", "zero1_universal", "zero3_universal"])
def test_a_forged_description_stays_inside_our_errors(name: str, tmp_path: Path) -> None:
    folder, rng = fixtures.copied(name, tmp_path), random.Random(name)
    archives = [file for file in fixtures.files(folder) if file.suffix == ".pt"]
    for file in rng.choices(archives, k=CHANGES):
        intact = file.read_bytes()
        file.write_bytes(rewritten(intact, rng))
        with suppress(EverstepError):
            checkpoint = read(str(folder))
            check(checkpoint)
            verify(checkpoint)
        file.write_bytes(intact)
