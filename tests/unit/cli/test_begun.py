"""Trainers that died before they recorded anything take nothing away from what there was: not from resuming, nor from
what the commands say."""

import shutil
from pathlib import Path

import pytest
import torch

import everstep
from everstep.errors import Damaged
from everstep.log import lease, term
from everstep.log.inventory import survey
from everstep.recover.cohort import stand
from everstep.store import cohort as cohorts
from everstep.store.cohort import Cohort
from everstep.store.disk import LocalDisk, existing
from tests.unit.cli.runs import contents, trained

GOLDEN = Path(__file__).parents[2] / "format/golden/v1_parts/run2"
"""Two writers, of the first released version."""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "run"))


def begun(path: Path, ranks: int, acknowledged: int = -1) -> None:
    """A cohort goes on in another layout. So many of its writers open an epoch, none writes a base. The disk may have
    `acknowledged` a step of the first that the other never had."""
    disk = existing(str(path))
    found = stand(disk, str(path))
    assert found is not None
    epochs = tuple(
        _opened(disk, str(path), rank, found.step, -1 if rank else acknowledged, opens=rank < ranks)
        for rank in range(2)
    )
    number = 1 + cohorts.load_all(disk)[0].number
    cohorts.begin(disk, Cohort(number, epochs, found.epochs, found.step, "2026-11-19T00:00:00+00:00"))
    disk.release()


def _opened(disk: LocalDisk, path: str, rank: int, step: int, acknowledged: int, *, opens: bool) -> int:
    now = "2026-11-19T00:00:00+00:00"
    held = lease.take(disk, survey(disk, path).identity.run, rank, opened=now, take_over=False)
    found = survey(disk, path, rank=rank)
    if opens:
        term.begin(
            disk, held.book, found.manifest, found.segments, parent=None, step=step, chain=0, opened=now,
            segment_bytes=1 << 20, acknowledged=acknowledged,
        ).close()  # fmt: skip
    held.release()
    return held.book.manifest.epoch


@pytest.mark.parametrize("ranks", [0, 1, 2])
def test_a_cohort_that_holds_nothing_yet_hides_nothing(ranks: int, two: Path, cli) -> None:
    before = cli("ls", two, "--json").json()
    shown = cli("show", two, "--json").json()
    logged = cli("log", two, "--json").json()
    begun(two, ranks)
    held = contents(two)
    found = cli("ls", two, "--json").json()
    for key in ("steps", "acknowledged", "newest", "damages"):
        assert found[key] == before[key], key
    assert found["cohort"] == {**before["cohort"], "number": 2, "begun": True}
    assert cli("show", two, "--json").json() == shown
    assert cli("log", two, "--json").json() == logged
    assert "cohort 2 goes on from them and holds nothing yet" in cli("ls", two).out
    assert cli("explain", two, "--onto", "single").code == 0
    assert contents(two) == held


def test_ls_of_a_cohort_that_trains_says_so(two: Path, cli) -> None:
    assert "2 writers train together (cohort 1): restorable 0 to 3; acknowledged 3." in cli("ls", two).out


def test_pruning_then_keeps_the_run_as_it_is_resumed(two: Path, cli) -> None:
    """What a later branch had come to on its own is not promised of this one."""
    begun(two, 2, acknowledged=9)
    assert cli("prune", two, "--keep", "last:20").code == 0
    assert cli("verify", two, "--replay").code == 0
    found = cli("ls", two, "--json").json()
    assert (found["steps"], found["acknowledged"], found["cohort"]["acknowledged"]) == ([[0, 3]], 3, 3)
    disk = existing(str(two))
    assert stand(disk, str(two)) is not None
    disk.release()


def test_a_writer_that_died_before_it_had_begun_is_none(two: Path, cli) -> None:
    (two / "w00002").mkdir()
    assert cli("verify", two).code == 0
    assert cli("ls", two).code == 0


def test_damage_to_what_it_goes_on_from_is_found(two: Path) -> None:
    begun(two, 2)
    begun(two, 2)
    for name in (two / "w00001").glob("b*.safetensors"):
        name.write_bytes(name.read_bytes()[:-1])
    for name in (two / "w00001").glob("*.seg"):
        name.unlink()
    disk = existing(str(two))
    with pytest.raises(Damaged, match="step 3 was acknowledged by every writer"):
        stand(disk, str(two))
    disk.release()


def test_an_epoch_that_came_to_nothing_still_says_what_it_began_with(tmp_path: Path, cli) -> None:
    path = trained(tmp_path / "run")
    for _ in range(2):
        begun_alone(path)
    for epoch in (2, 3):
        assert cli("ls", f"{path}#{epoch}", "--json").json()["acknowledged"] == 8


def begun_alone(path: Path) -> None:
    """A trainer that resumes and goes again."""
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with everstep.open(path, model=model, optimizer=optimizer) as run:
        assert run.resume() == 8
