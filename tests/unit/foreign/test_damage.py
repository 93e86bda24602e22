"""Damage to a checkpoint is found and named, whatever it hits; it never does anything else."""

import random
import re
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.errors import Damaged, EverstepError
from everstep.foreign.found import Checkpoint, check, verify
from everstep.foreign.recognise import read
from tests.unit.foreign import fixtures

PREFIXES, FLIPS = 25, 40


def whole(path: Path) -> Checkpoint:
    """Everything that a careful caller does before it uses a checkpoint."""
    checkpoint = read(str(path))
    check(checkpoint)
    verify(checkpoint)
    return checkpoint


@pytest.mark.parametrize("name", fixtures.CHECKSUMMED)
def test_a_flipped_byte_of_any_tensor_is_found_and_named(name: str, tmp_path: Path) -> None:
    folder, rng = fixtures.copied(name, tmp_path), random.Random(name)
    checkpoint = read(str(folder))
    for part in checkpoint.tensors:
        place = part.place
        content = bytearray(Path(place.path).read_bytes())
        at = place.offset + rng.randrange(place.nbytes)
        content[at] ^= 1 << rng.randrange(8)
        intact = Path(place.path).read_bytes()
        Path(place.path).write_bytes(content)
        with pytest.raises(Damaged, match=re.escape(Path(place.path).name)):
            verify(checkpoint)
        Path(place.path).write_bytes(intact)
    verify(checkpoint)


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_a_file_that_is_missing_is_found(name: str, tmp_path: Path) -> None:
    folder = fixtures.copied(name, tmp_path)
    answer = whole(folder)
    for file in fixtures.files(folder):
        content = file.read_bytes()
        file.unlink()
        with suppress(EverstepError):
            assert same(whole(folder), answer), file  # only a file that nothing needed
        file.write_bytes(content)


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_a_prefix_of_any_file_is_refused(name: str, tmp_path: Path) -> None:
    folder, rng = fixtures.copied(name, tmp_path), random.Random(name)
    answer = whole(folder)
    everything = [file for file in fixtures.files(folder) if file.stat().st_size > 1]
    for _ in range(PREFIXES):
        file = rng.choice(everything)
        content = file.read_bytes()
        file.write_bytes(content[: rng.randrange(len(content))])
        with suppress(EverstepError):
            assert same(whole(folder), answer), file
        file.write_bytes(content)


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_a_flipped_bit_anywhere_raises_or_changes_nothing(name: str, tmp_path: Path) -> None:
    folder, rng = fixtures.copied(name, tmp_path), random.Random(name)
    answer = whole(folder)
    covered = tensor_bytes(answer)
    for file in rng.choices(fixtures.files(folder), k=FLIPS):
        intact = file.read_bytes()
        content, at = bytearray(intact), rng.randrange(len(intact))
        if (str(file), at) in covered:
            continue
        content[at] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        with suppress(EverstepError):
            assert same(whole(folder), answer), (file, at)
        file.write_bytes(intact)


@pytest.mark.parametrize("name", ["dcp", "dcp_nested", "mcore"])
def test_a_flipped_bit_of_an_index_without_checksum_is_found_by_what_it_contradicts(name: str, tmp_path: Path) -> None:
    folder, rng = fixtures.copied(name, tmp_path), random.Random(name)
    file, answer = folder / ".metadata", whole(folder)
    intact = file.read_bytes()
    for _ in range(FLIPS * 4):
        content = bytearray(intact)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        with suppress(EverstepError):
            assert same(whole(folder), answer)


@pytest.mark.parametrize("name", ["dcp", "mcore"])
def test_an_index_that_was_overwritten_stays_inside_our_errors(name: str, tmp_path: Path) -> None:
    folder, rng = fixtures.copied(name, tmp_path), random.Random(name)
    file = folder / ".metadata"
    intact = file.read_bytes()
    for _ in range(FLIPS * 4):
        content = bytearray(intact)
        for _ in range(rng.randrange(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content)
        with suppress(EverstepError):
            whole(folder)


def same(one: Checkpoint, two: Checkpoint) -> bool:
    return (one.tensors, one.objects, one.aliases, one.unknown) == (two.tensors, two.objects, two.aliases, two.unknown)


def tensor_bytes(checkpoint: Checkpoint) -> set[tuple[str, int]]:
    return {
        (part.place.path, at)
        for part in checkpoint.tensors
        for at in range(part.place.offset, part.place.offset + part.place.nbytes)
    }
