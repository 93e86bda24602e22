"""Something else in a file's place, names that are not ours, and who may read what we write."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import everstep
from everstep.errors import Damaged, EverstepError, StoreFailed
from everstep.store import names
from everstep.store.disk import existing
from tests.hostile.tiny import Files, W, files_of, prove, train, write_files

FILES = (
    "run.json", W + "e00000002.json", W + "e00000002.ack", W + "e00000001-00000000.seg", W + "e00000002-00000001.seg",
    W + "b000000000006-e00000002.json", W + "b000000000006-e00000002.safetensors",
)  # fmt: skip


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: reading it would never end
    except PermissionError:
        pytest.skip("only root makes devices")


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 107 letters
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


STRANGERS: dict[str, Callable[[Path], None]] = {
    "link": lambda path: path.symlink_to(path.parent / "kept"),
    "link to itself": lambda path: path.symlink_to(path),
    "link outside": lambda path: path.symlink_to("/etc/passwd"),
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "device": _device,
    "socket": _socket,
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("name", FILES)
def test_only_a_regular_file_is_read(runs: tuple[Files, Files], tmp_path: Path, name: str, stranger: str) -> None:
    path = write_files(runs[0], tmp_path / "run") / name
    path.rename(path.parent / "kept")
    STRANGERS[stranger](path)
    disk = existing(str(tmp_path / "run"))
    try:
        if name.endswith(".ack"):  # a note that cannot be read says nothing
            assert prove(disk)
        else:
            with pytest.raises(EverstepError):
                prove(disk)
    finally:
        disk.release()


@pytest.mark.parametrize("stranger", ["link", "link outside", "pipe", "directory", "device", "socket"])
def test_a_lease_that_is_no_file_of_ours_is_refused_and_left_alone(
    runs: tuple[Files, Files], tmp_path: Path, stranger: str
) -> None:
    path = write_files(runs[0], tmp_path / "run") / W / "lease"
    path.rename(path.parent / "kept")
    STRANGERS[stranger](path)
    before = os.lstat(path).st_mode
    with pytest.raises(StoreFailed):
        train(tmp_path / "run", 1)
    assert os.lstat(path).st_mode == before
    assert (path.parent / "kept").read_bytes() == runs[0][W + "lease"]


def test_a_lease_with_a_second_name_is_not_emptied(runs: tuple[Files, Files], tmp_path: Path) -> None:
    path = write_files(runs[0], tmp_path / "run") / W / "lease"
    path.unlink()
    (tmp_path / "precious").write_text("all I have")
    os.link(tmp_path / "precious", path)
    with pytest.raises(StoreFailed):
        train(tmp_path / "run", 1)
    assert (tmp_path / "precious").read_text() == "all I have"


def test_a_link_in_the_place_of_the_writers_directory_is_not_followed(
    runs: tuple[Files, Files], tmp_path: Path
) -> None:
    root = write_files(runs[0], tmp_path / "run")
    (root / "w00000").rename(tmp_path / "elsewhere")
    (root / "w00000").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Damaged):
        everstep.restore(root)


ODD = [
    "e\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff19.json", "e\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0669.json",
    "e00000009.json\n", "E00000009.json", "e00000009.json~", "e000000009.json", " e00000009.json", "e00000009.JSON",
    "e-0000009.json", "\x1b[2Je.json", "e00000009.jso\u0274", "e0000000\u00b2.json", "\udcff.json",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_name_that_only_looks_like_ours_is_ignored_and_kept(
    runs: tuple[Files, Files], tmp_path: Path, name: str
) -> None:
    root = write_files(runs[0], tmp_path / "run")
    (root / W / name).write_text("mine")
    assert everstep.restore(root).step == 9
    train(root, 1)
    assert (root / W / name).read_text() == "mine"


@pytest.mark.parametrize("pattern", [names.MANIFEST, names.SEGMENT, names.BASE, names.WITNESS, names.WRITER])
def test_a_name_that_parses_holds_ascii_digits_only(pattern: object) -> None:
    import re

    assert isinstance(pattern, re.Pattern)
    assert pattern.flags & re.ASCII


def test_paths_are_made_from_numbers_and_stay_inside() -> None:
    for make in (names.segment, names.base, names.tensors):
        for number in (0, 1, 10**20, -1):
            path = make(0, number, number)
            assert path.startswith(W)
            assert path.count("/") == 1
            assert ".." not in path


@pytest.mark.parametrize("url", ["", "run\0", "s3://bucket/run", "http://x/y"])
def test_a_url_that_names_no_local_directory_is_refused(url: str) -> None:
    with pytest.raises(EverstepError):
        everstep.restore(url)


def test_files_are_private_whatever_the_umask_and_the_directory(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    before = os.umask(0)
    try:
        train(tmp_path / "open" / "deep" / "run", 3)
    finally:
        os.umask(before)
    for path in (tmp_path / "open" / "deep").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "open" / "deep").stat().st_mode) == 0o700


def test_reading_a_run_changes_nothing(runs: tuple[Files, Files], tmp_path: Path) -> None:
    root = write_files(runs[1], tmp_path / "run")
    everstep.restore(root)
    assert files_of(root) == runs[1]
