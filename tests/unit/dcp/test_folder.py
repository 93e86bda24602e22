"""Who may write into a folder, what is swept there, and what belongs to somebody else and stays."""

import os
from pathlib import Path
from typing import Any

import pytest

from everstep.dcp import Writer, folder, names
from everstep.dcp.refusal import refusal
from everstep.errors import Fenced, StoreFailed
from everstep.store.disk import LocalDisk
from tests.unit.dcp.states import differences, load, made, refused, save


def dead(path: Path) -> Path:
    """What a process leaves that was killed while it wrote."""
    begun = folder.begin(str(path))
    (Path(begun.where) / "__0_0123456789ab_0.distcp").write_bytes(b"half")
    folder.release(begun)
    return Path(begun.where)


def test_a_new_checkpoint_is_not_under_its_name_while_it_grows(tmp_path: Path) -> None:
    where = dead(tmp_path / "a")
    assert where == tmp_path / ".a.everstep"
    assert not (tmp_path / "a").exists()


def test_the_next_save_of_that_name_sweeps_what_a_dead_one_left(tmp_path: Path) -> None:
    dead(tmp_path / "a")
    save(tmp_path / "a", made(1))
    assert os.listdir(tmp_path) == ["a"]
    assert "__0_0123456789ab_0.distcp" not in os.listdir(tmp_path / "a")


def test_the_next_save_of_another_name_sweeps_it_too(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        dead(tmp_path / name)
    save(tmp_path / "d", made(1))
    assert os.listdir(tmp_path) == ["d"]
    assert differences(load(tmp_path / "d"), made(1)) == []


def test_a_save_over_an_older_one_sweeps_it_too(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    where = dead(tmp_path / "b")
    save(tmp_path / "a", made(2))
    assert os.listdir(where) == [names.LEASE]
    save(tmp_path / "c", made(3))
    assert sorted(os.listdir(tmp_path)) == ["a", "c"]


def test_a_save_under_way_beside_it_is_left_alone(tmp_path: Path) -> None:
    begun = folder.begin(str(tmp_path / "a"))
    part = Path(begun.where) / "__0_0123456789ab_0.distcp"
    part.write_bytes(b"growing")
    save(tmp_path / "b", made(1))
    assert part.read_bytes() == b"growing"
    folder.release(begun)


def test_somebodys_own_file_in_a_dead_folder_stays(tmp_path: Path) -> None:
    (dead(tmp_path / "a") / "notes.txt").write_text("mine")
    save(tmp_path / "b", made(1))
    assert set(os.listdir(tmp_path / ".a.everstep")) == {"notes.txt", names.LEASE}


def test_a_folder_that_another_process_saves_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".a.everstep").mkdir()
    other = LocalDisk(str(tmp_path / ".a.everstep"))
    lease = other.lock(names.LEASE, b"another process")  # an open file of its own: locks do not tell processes apart
    assert lease is not None
    refused(lambda: save(tmp_path / "a", made(1)), "another process is saving")
    other.close(lease)
    save(tmp_path / "a", made(1))


def test_a_later_save_of_the_same_process_takes_over_and_the_earlier_cannot_commit(tmp_path: Path) -> None:
    first = folder.begin(str(tmp_path / "a"))
    second = folder.begin(str(tmp_path / "a"))
    with pytest.raises(Fenced, match="not committed"):
        folder.commit(first, None, b"")  # type: ignore[arg-type]  # the lease is asked first
    folder.release(second)


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    for seed in (1, 2):
        save(tmp_path / "a", made(seed))
        assert differences(load(tmp_path / "a"), made(seed)) == []
    assert (tmp_path / "a" / "config.json").read_text() == "{}"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_put_under_the_name_during_the_save_is_joined_and_not_lost(tmp_path: Path) -> None:
    class Late(Writer):
        def finish(self, metadata: Any, results: Any) -> None:
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "config.json").write_text("{}")
            super().finish(metadata, results)

    save(tmp_path / "a", made(1), Late(tmp_path / "a"))
    assert differences(load(tmp_path / "a"), made(1)) == []
    assert (tmp_path / "a" / "config.json").exists()
    save(tmp_path / "b", made(2))  # takes the empty folder that this left
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_data_file_that_vanished_before_the_commit_prevents_it(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))

    class Robbed(Writer):
        def finish(self, metadata: Any, results: Any) -> None:
            os.unlink(tmp_path / "a" / results[0][0].storage_data.file.name)
            super().finish(metadata, results)

    refused(lambda: save(tmp_path / "a", made(2), Robbed(tmp_path / "a")), "is missing")
    assert differences(load(tmp_path / "a"), made(1)) == []


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    refused(lambda: save(tmp_path / "a", made(1)), "is a file; a checkpoint is a folder")
    with pytest.raises(StoreFailed):
        folder.growing(str(tmp_path / "a"))


def test_an_unfinished_save_is_refused_with_what_is_missing_and_what_is_good(tmp_path: Path) -> None:
    for name in ("step-1", "step-2"):
        save(tmp_path / name, made(1))
    dead(tmp_path / "step-3")
    said = str(refusal(str(tmp_path / "step-3")))
    assert "begun and not finished (1 of its data files" in said
    assert "newest first: step-2, step-1" in said
    refused(lambda: load(tmp_path / "step-3"), "begun and not finished")


def test_the_lease_is_given_back_after_every_save(tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    disk = LocalDisk(str(tmp_path / "a"))
    assert not disk.locked(names.LEASE)
    disk.release()
