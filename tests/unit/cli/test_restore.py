"""`restore`: the file holds the state, other tools read it, and nothing is ever half written."""

import os
from pathlib import Path

import msgspec
import pytest
import safetensors
import safetensors.torch
import torch

import everstep
from everstep.capture.tensors import TORCH_DTYPES, describe, to_bytes
from everstep.store import export, torchfile
from everstep.store.disk import LocalDisk

SHAPES = [(2, 3), (5,), (), (0, 4)]


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride()) and to_bytes(one) == to_bytes(
        two
    )


@pytest.mark.parametrize("step", [24, 26, 3])
def test_safetensors_reads_what_was_restored(run: Path, cli, tmp_path: Path, step: int) -> None:
    assert cli("restore", run, "--step", step, "--to", tmp_path / "s").code == 0
    held, wanted = safetensors.torch.load_file(tmp_path / "s"), everstep.restore(run, step)
    assert all(same(held[name], tensor) for name, tensor in wanted.tensors.items())
    with safetensors.safe_open(tmp_path / "s", "pt") as file:
        notes = msgspec.json.decode(file.metadata()["everstep.context"])
    assert notes["step"] == step
    assert notes["context"].keys() == wanted.context.keys()
    assert notes["context"]["optimizers"]["main"][0]["lr"] == wanted.context["optimizers"]["main"][0]["lr"]


@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_what_was_restored(run: Path, cli, tmp_path: Path, mapped: bool) -> None:
    assert cli("restore", run, "--to", tmp_path / "s.pt", "--format", "torch").code == 0
    held = torch.load(tmp_path / "s.pt", weights_only=True, mmap=mapped)
    assert all(same(held[name], tensor) for name, tensor in everstep.restore(run).tensors.items())


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit", "64-bit"])
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_torch_reads_every_element_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, wide: bool
) -> None:
    if wide:  # as if every member were beyond 4 GiB
        monkeypatch.setattr(torchfile, "WIDE_FROM", 0)
    tensors = {f"{shape}/\n\x1b/ä": torch.randint(0, 2, shape).to(TORCH_DTYPES[dtype]) for shape in SHAPES}
    described = [(describe(name, tensor), to_bytes(tensor)) for name, tensor in tensors.items()]
    export.publish(str(tmp_path / "f"), torchfile.pieces(described, b"{}"), force=False)
    for mapped in (False, True):
        held = torch.load(tmp_path / "f", weights_only=True, mmap=mapped)
        assert held.keys() == tensors.keys()
        assert all(same(held[name], tensor) for name, tensor in tensors.items())


def test_the_same_state_gives_the_same_bytes(run: Path, cli, tmp_path: Path) -> None:
    for form in ("torch", "safetensors"):
        for name in ("one", "two"):
            cli("restore", run, "--step", 24, "--to", tmp_path / name, "--format", form, "--force")
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_that_exists_is_not_replaced_unless_forced(run: Path, cli, tmp_path: Path) -> None:
    target = tmp_path / "s"
    target.write_bytes(b"mine")
    done = cli("restore", run, "--to", target)
    assert (done.code, target.read_bytes()) == (2, b"mine")
    assert "--force" in done.err
    assert cli("restore", run, "--to", target, "--force").code == 0
    assert target.read_bytes() != b"mine"


def test_a_name_taken_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "s"

    def pieces() -> object:
        target.write_bytes(b"theirs")
        yield b"ours"

    with pytest.raises(everstep.errors.StoreFailed):
        export.publish(str(target), pieces(), force=False)  # type: ignore[arg-type]
    assert target.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["s"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalDisk, "sync", full)
    with pytest.raises(everstep.errors.StoreFailed, match="No space left"):
        export.publish(str(tmp_path / "s"), [b"x"], force=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", [".", "nowhere/s"])
def test_a_path_that_cannot_be_a_file_is_refused(run: Path, cli, tmp_path: Path, target: str) -> None:
    done = cli("restore", run, "--to", tmp_path / target)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_an_older_branch_can_be_restored(run: Path, cli, tmp_path: Path) -> None:
    assert cli("restore", f"{run}#2", "--to", tmp_path / "s").code == 0
    with safetensors.safe_open(tmp_path / "s", "pt") as file:
        assert file.metadata()["everstep"] == "step 20"
