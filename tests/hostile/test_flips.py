"""One flipped bit anywhere is reported, or nothing that is read has changed."""

import random

import pytest

from everstep.errors import EverstepError
from everstep.store.names import RESERVE
from tests.hostile.tiny import Files, Memory, W, flipped, prove, seed_of

SMALL = 1200
HEAD_BITS = 8 * 192
SAMPLES = 300
CLOSED = (
    "run.json", "e00000002.json", "e00000001.ack", "e00000002.ack", "lease", "e00000001-00000000.seg",
    "e00000001-00000001.seg", "e00000002-00000000.seg", "e00000002-00000001.seg", "b000000000000-e00000001.json",
    "b000000000001-e00000001.json", "b000000000006-e00000002.json", "b000000000000-e00000001.safetensors",
    "b000000000001-e00000001.safetensors", "b000000000006-e00000002.safetensors",
)  # fmt: skip
CRASHED = ("e00000002.json", "e00000002.ack", "e00000002-00000001.seg")
NOTES = ("e00000001.ack", "e00000002.ack", "lease")
"""Files that may be lost: what they say only ever adds to what the log proves by itself."""


def full(name: str) -> str:
    return name if name == "run.json" else W + name


def unreported(files: Files, path: str, bits: list[int]) -> list[int]:
    """The flips that were not reported although something else was read."""
    whole, before = files[path], prove(Memory(files))
    silent = []
    for bit in bits:
        try:
            if prove(Memory(files | {path: flipped(whole, bit)})) != before:
                silent.append(bit)
        except EverstepError:
            pass
    return silent


def harmless(files: Files, path: str, bits: list[int]) -> int:
    count = 0
    for bit in bits:
        try:
            prove(Memory(files | {path: flipped(files[path], bit)}))
            count += 1
        except EverstepError:
            pass
    return count


def chosen(data: bytes, name: str) -> list[int]:
    """All bits of a small file; of a large one its head and a sample whose seed is its name."""
    if len(data) <= SMALL:
        return list(range(8 * len(data)))
    seed = seed_of(name)
    print(f"seed {seed}")
    return [*range(HEAD_BITS), *random.Random(seed).sample(range(HEAD_BITS, 8 * len(data)), SAMPLES)]


def test_the_table_names_every_file_but_the_one_that_nobody_reads(runs: tuple[Files, Files]) -> None:
    assert set(runs[0]) == {RESERVE, *(full(name) for name in CLOSED)}
    files = {name: data for name, data in runs[0].items() if name != RESERVE}
    assert prove(Memory(files)) == prove(Memory(files | {RESERVE: b"anything"})) == prove(Memory(runs[0]))


@pytest.mark.parametrize("name", CLOSED)
def test_every_flip_in_a_closed_run_is_reported(runs: tuple[Files, Files], name: str) -> None:
    path = full(name)
    bits = chosen(runs[0][path], name)
    if name in NOTES:
        assert unreported(runs[0], path, bits) == []
    else:
        assert harmless(runs[0], path, bits) == 0


@pytest.mark.parametrize("name", CRASHED)
def test_every_flip_in_what_a_crash_left_is_reported(runs: tuple[Files, Files], name: str) -> None:
    path = full(name)
    bits = chosen(runs[1][path], name)
    if name in NOTES:
        assert unreported(runs[1], path, bits) == []
    else:
        assert harmless(runs[1], path, bits) == 0


@pytest.mark.crash
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", [name for name in CLOSED if name not in NOTES])
def test_every_single_bit_of_a_closed_run_is_covered(runs: tuple[Files, Files], name: str) -> None:
    path = full(name)
    assert harmless(runs[0], path, list(range(8 * len(runs[0][path])))) == 0


def test_bytes_beyond_the_cut_of_a_sealed_segment_are_no_part_of_the_run(runs: tuple[Files, Files]) -> None:
    path = W + "e00000001-00000001.seg"
    longer = runs[0] | {path: runs[0][path] + runs[0][path][128:]}
    assert prove(Memory(longer)) == prove(Memory(runs[0]))
