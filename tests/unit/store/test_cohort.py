"""A cohort is begun once, read back as it was, and refused when a bit of it is not."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def note(disk: LocalDisk, rank: int, epoch: int, *spans: tuple[int, int]) -> None:
    if not disk.names("").count(names.writer(rank)):
        disk.make_dir(names.writer(rank))
    handle = disk.create(names.witness(rank, epoch))
    disk.mark(handle, witness.pack(epoch, spans))
    disk.close(handle)


def noted(disk: LocalDisk, *held: tuple[tuple[int, int], ...]) -> Peers:
    for rank, spans in enumerate(held):
        note(disk, rank, ONE.epochs[rank], *spans)
    return Peers(disk, ONE.epochs)


def test_what_all_have_acknowledged(disk: LocalDisk) -> None:
    assert Peers(disk, ()).acknowledged == NOBODY
    assert Peers(disk, (4,)).acknowledged == NOBODY
    peers = noted(disk, ((0, 50),), ((0, 40),), ((0, 30),))
    assert (peers.acknowledged, peers.slowest) == (30, 2)
    assert peers.wait(30, 0.0)
    assert not peers.wait(31, 0.0)


def test_a_step_that_one_has_passed_over_is_not_acknowledged(disk: LocalDisk) -> None:
    """Each has bases of its own: 30 is the least of the newest, and two do not have it."""
    assert noted(disk, ((0, 12), (32, 32)), ((0, 8), (10, 11), (32, 40)), ((0, 20), (30, 30))).acknowledged == 11


def test_a_writer_that_has_noted_nothing_has_acknowledged_nothing(disk: LocalDisk) -> None:
    assert Peers(disk, ONE.epochs).acknowledged == -1


def test_a_keeper_that_took_a_dead_ones_place_is_found(disk: LocalDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "LOOK_SECONDS", 1e-9)
    monkeypatch.setattr(cohorts, "SEARCH_SECONDS", 1e-9)
    peers = noted(disk, ((0, 50),), ((0, 40),), ((0, 30),))
    assert peers.acknowledged == 30
    note(disk, 2, ONE.epochs[2] + 3, (0, 45))
    assert peers.wait(40, 10.0)


SPANS = st.lists(st.integers(0, 40), max_size=10, unique=True).map(
    lambda ends: tuple(zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
)


@settings(deadline=None, max_examples=300)
@given(st.lists(SPANS, min_size=1, max_size=5))
def test_the_newest_step_in_common_is_the_last_of_all_in_common(held: list[tuple[tuple[int, int], ...]]) -> None:
    common = set.intersection(*({s for first, last in spans for s in range(first, last + 1)} for spans in held))
    assert cohorts.newest(held) == max(common, default=-1)
    assert {s for first, last in cohorts.shared(held) for s in range(first, last + 1)} == common
