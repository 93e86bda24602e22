"""Checkpoints of others that were made to harm whoever reads them: nothing is taken, followed or removed for them."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from everstep.errors import Damaged, EverstepError, StoreFailed, Unsupported
from everstep.foreign import hf, torch_file
from everstep.foreign.recognise import read
from everstep.store import folder as growing
from tests.unit.dcp.states import differences, load, made, refused, save

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
SLACK = 64 * MIB
READ = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import torch
from everstep.errors import EverstepError
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
torch.set_num_threads(1)
for at, (path, room) in enumerate(zip(sys.argv[2::2], map(int, sys.argv[3::2]))):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        arrive(path, f"{path}.run", wishes())
        said = "read"
    except EverstepError as refused:
        said = type(refused).__name__
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(said if grown <= room else f"took {grown} bytes, had {room}")
"""


def archive(pickle: bytes, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as written:
        for name, content in {"data.pkl": pickle, **members}.items():
            written.writestr(f"a/{name}", content)
    return target.getvalue()


def header(text: bytes, nbytes: int = 0) -> bytes:
    return len(text).to_bytes(8, "little") + text + bytes(nbytes)


def long(n: int) -> bytes:
    return b"\x8a\x08" + n.to_bytes(8, "little")


def rebuilt(count: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """The description of a float32 tensor over storage 0, as torch.save writes it."""
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + long(count) + b"tQ"
    )
    spans = [b"(" + b"".join(map(long, numbers)) + b"t" for numbers in (shape, strides)]
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + b"".join(spans) + b"NNtR."


def expanded(rows: int, columns: int) -> bytes:
    """One row of numbers that is said to be so many."""
    return archive(rebuilt(columns, (rows, columns), (0, 1)), {"data/0": bytes(4 * columns)})


ENTRY = b'"w":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}'
BOMBS: dict[str, bytes] = {
    "one row said to be 4096": expanded(4096, MIB // 4),
    "a storage of more than the file": archive(rebuilt(1 << 50, (1 << 50,), (1,)), {"data/0": bytes(64)}),
    "a member that unpacks to more": archive(b"N.", {"data/0": bytes(64 * MIB)}, zipfile.ZIP_DEFLATED),
    "a header of empty lists": header(b'{"__metadata__":' + b"[" + b"[]," * (3 * MIB) + b"[]]}"),
    "a header that claims to be long": (1 << 62).to_bytes(8, "little") + b"{}",
    "a tensor that claims to be long": header(b"{" + ENTRY % (1 << 50, 1 << 52) + b"}", 64),
    "an index of empty lists": b'{"weight_map":' + b"[" + b"[]," * (3 * MIB) + b"[]]}",
    "another backend's empty lists": b'{"sharded_backend":' + b"[" + b"[]," * (340 << 10) + b"[]]}",
}  # fmt: skip


def written(name: str, home: Path) -> Path:
    """A bomb as the kind of checkpoint that it pretends to be."""
    content = BOMBS[name]
    if name.startswith("an index"):
        (home / name).mkdir()
        (home / name / hf.INDEX).write_bytes(content)
    elif name.startswith("another"):
        save(home / name, {"w": torch.ones(2)})
        (home / name / "metadata.json").write_bytes(content)
    else:
        (home / name).write_bytes(content)
    return home / name


def test_no_checkpoint_makes_an_import_take_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    arguments = [str(ROOT)]
    for name in BOMBS:
        arguments += [str(written(name, tmp_path)), str(len(BOMBS[name]) + SLACK)]
    done = subprocess.run(
        [sys.executable, "-c", READ, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = dict(zip(BOMBS, done.stdout.splitlines(), strict=True))
    assert {name: verdict for name, verdict in said.items() if verdict not in ("Damaged", "Unsupported")} == {}


def test_a_tensor_that_was_expanded_honestly_and_is_small_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1, 5).expand(3, 5)}, tmp_path / "f.pt")
    assert {part.tensor.shape for part in torch_file.read(str(tmp_path / "f.pt")).tensors} == {(3, 5)}


def test_a_tensor_that_is_far_larger_than_its_bytes_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "f.pt").write_bytes(expanded(4096, MIB // 4))
    with pytest.raises(Unsupported, match="contiguous"):
        read(str(tmp_path / "f.pt"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A checkpoint outside of the folder that is saved into."""
    (tmp_path / "other").mkdir()
    save(tmp_path / "other" / "kept", made(1))
    return tmp_path / "other" / "kept"


def test_a_link_that_looks_like_a_dead_save_is_not_swept(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".dead.everstep").symlink_to(elsewhere)
    save(tmp_path / "mine" / "a", made(2))
    assert differences(load(elsewhere), made(1)) == []
    assert (tmp_path / "mine" / ".dead.everstep").is_symlink()


def test_a_link_in_the_place_where_a_save_grows_is_refused(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".a.everstep").symlink_to(elsewhere)
    refused(lambda: save(tmp_path / "mine" / "a", made(2)), "is a link")
    assert differences(load(elsewhere), made(1)) == []


@pytest.mark.parametrize("name", [".metadata", "part", "record"])
def test_a_link_in_a_saved_checkpoint_is_not_followed(name: str, tmp_path: Path) -> None:
    save(tmp_path / "a", made(1))
    pattern = {"part": "__*.distcp", "record": "everstep-*.json"}.get(name, name)
    (file,) = (tmp_path / "a").glob(pattern)
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    refused(lambda: load(tmp_path / "a"), "cannot be read|is missing")


@pytest.mark.parametrize("make", [growing.growing, growing.growing_file], ids=["folder", "file"])
def test_a_link_in_the_target_s_place_is_not_followed(make: object, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").symlink_to(tmp_path / "outside")
    assert callable(make)
    with pytest.raises(StoreFailed, match="Nothing was changed"), make(str(tmp_path / "target")):
        pass
    assert os.listdir(tmp_path / "outside") == []
    assert sorted(os.listdir(tmp_path)) == ["outside", "target"]


@pytest.mark.parametrize("name", ["f.pt", "f.safetensors", "folder/.metadata", f"folder/{hf.INDEX}", "folder/latest"])
def test_a_pipe_or_a_device_in_a_file_s_place_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    target = tmp_path if "/" not in name else tmp_path / "folder"
    for put in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
        put(tmp_path / name)
        with pytest.raises(Damaged, match="not a regular file"):
            read(str(target / name) if target == tmp_path else str(target))
        (tmp_path / name).unlink()


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "a\0b"])
def test_an_index_cannot_lead_out_of_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(header(b"{" + ENTRY % (2, 8) + b"}", 8))
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / hf.INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(EverstepError, match="outside the checkpoint's folder"):
        read(str(tmp_path / "hf"))
