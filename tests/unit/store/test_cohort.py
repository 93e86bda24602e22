"""A cohort is begun once, read back as it was, and refused when a bit of it is not."""

from pathlib import Path

import pytest

from everstep.errors import Damaged, EverstepError, Fenced
from everstep.store import cohort as cohorts
from everstep.store import names, witness
from everstep.store.cohort import NOBODY, Cohort, Peers
from everstep.store.disk import LocalDisk, created

ONE = Cohort(1, (4, 7, 1), (), 0, "2026-01-01T00:00:00+00:00")
TWO = Cohort(2, (5, 8), (4, 7, 1), 120, "2026-01-02T00:00:00+00:00")


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return created(str(tmp_path))


def test_the_newest_comes_first(disk: LocalDisk) -> None:
    cohorts.begin(disk, ONE)
    cohorts.begin(disk, TWO)
    assert cohorts.load_all(disk) == [TWO, ONE]


def test_of_two_launches_one_begins(disk: LocalDisk) -> None:
    cohorts.begin(disk, ONE)
    with pytest.raises(Fenced, match="another launch"):
        cohorts.begin(disk, ONE)


def test_no_bit_can_change_unnoticed(disk: LocalDisk, tmp_path: Path) -> None:
    cohorts.begin(disk, ONE)
    file = tmp_path / cohorts.name_of(1)
    whole = file.read_bytes()
    for at in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[at // 8] ^= 1 << at % 8
        file.write_bytes(changed)
        try:
            found = cohorts.load_all(disk)
        except EverstepError:
            continue
        assert found == [ONE], at


def test_names_that_are_not_ours_are_ignored(disk: LocalDisk, tmp_path: Path) -> None:
    for name in (
        "c1.json",
        "c00000001.json.bak",
        "d00000001.json",
        "c\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661.json",
    ):
        (tmp_path / name).write_bytes(b"{}")
    assert cohorts.load_all(disk) == []


def test_a_file_of_another_kind_is_refused(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / cohorts.name_of(3)).write_bytes(b'{"everstep":"run","format":1,"checksum":"","document":{}}')
    with pytest.raises(Damaged):
        cohorts.load_all(disk)


def test_what_all_others_have_acknowledged(disk: LocalDisk) -> None:
    assert Peers(disk, 0, ()).acknowledged == NOBODY
    for rank, step in ((1, 40), (2, 30)):
        disk.make_dir(names.writer(rank))
        handle = disk.create(names.witness(rank, ONE.epochs[rank]))
        disk.mark(handle, witness.pack(ONE.epochs[rank], step))
        disk.close(handle)
    peers = Peers(disk, 0, ONE.epochs)
    assert (peers.acknowledged, peers.slowest) == (30, 2)
    assert peers.wait(30, 0.0)
    assert not peers.wait(31, 0.0)


def test_a_writer_that_has_noted_nothing_has_acknowledged_nothing(disk: LocalDisk) -> None:
    assert Peers(disk, 0, ONE.epochs).acknowledged == -1
