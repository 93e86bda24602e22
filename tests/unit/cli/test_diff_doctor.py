"""`diff` measures right; `doctor` measures at all, and warns."""

import math
import os
from pathlib import Path

import pytest
import torch

from everstep.store import probe
from tests.unit.cli.runs import flip


def test_diff_counts_what_changed(run: Path, cli) -> None:
    found = cli("diff", run, 20, 22, "--json").json()
    rows = {row["name"]: row for row in found["tensors"]}
    counter = rows["buffer/norm.num_batches_tracked"]
    assert (counter["elements_changed"], counter["bits_changed"], counter["l2"], counter["max_abs"]) == (1, 1, 2.0, 2.0)
    assert counter["relative"] == pytest.approx(0.1)
    assert [row["l2"] for row in found["tensors"]] == sorted((row["l2"] for row in found["tensors"]), reverse=True)
    assert "optimizer/main/first.weight/exp_avg" in cli("diff", run, 0, 22, "--json").json()["only_b"]


def test_a_step_does_not_differ_from_itself(run: Path, cli) -> None:
    rows = cli("diff", run, 20, 20, "--json").json()["tensors"]
    assert all(
        (row["elements_changed"], row["bits_changed"], row["l2"], row["relative"]) == (0, 0, 0, 0) for row in rows
    )


@pytest.mark.parametrize(
    "one, two, elements, bits, l2",
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), 0, 0, 0.0),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 1, 1, 0.0),
        (torch.tensor([3 + 0j]), torch.tensor([3 + 4j]), 1, 2, 4.0),
        (torch.tensor([True, False]), torch.tensor([False, False]), 1, 1, 1.0),
        (torch.empty(0), torch.empty(0), 0, 0, 0.0),
        (torch.tensor(1, dtype=torch.uint8), torch.tensor(2, dtype=torch.uint8), 1, 2, 1.0),
        (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16), 3, 21, math.sqrt(3)),
    ],
    ids=["equal", "signed zero", "complex", "bool", "empty", "scalar", "bfloat16"],
)
def test_bits_elements_and_norms(one: torch.Tensor, two: torch.Tensor, elements: int, bits: int, l2: float) -> None:
    from everstep.cli.diff import compare

    row = compare("x", one, two)
    assert (row["elements_changed"], row["bits_changed"], row["l2"]) == (elements, bits, pytest.approx(l2))


def test_doctor_measures_and_leaves_nothing(tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = cli("doctor", "--json").json()
    assert found["disk"]["sync_ms"] > 0
    assert found["native"]["kernels"] in ("generic", "avx2", "avx512")
    assert found["torch"]["version"] == torch.__version__
    assert found["run"] is None
    assert os.listdir(tmp_path) == []


def test_doctor_looks_at_the_run(run: Path, cli) -> None:
    found = cli("doctor", run, "--json").json()["run"]
    assert (found["steps"], found["owner"], found["room_for_next_base"]) == ([[0, 26]], None, True)
    flip(run / "w00000/e00000003-00000003.seg", 130)
    assert "WARNING: segment e00000003-00000003.seg" in cli("doctor", run).out


def test_doctor_names_a_path_without_a_run(tmp_path: Path, cli) -> None:
    assert "holds no run" in cli("doctor", tmp_path).out
    assert "no such directory" in cli("doctor", tmp_path / "x").out


MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /data rw - nfs4 server:/x rw
31 30 0:41 / /data/fast\\040disk rw - xfs /dev/sdb rw
broken line
"""


@pytest.mark.parametrize(
    "path, kind",
    [("/", "ext4"), ("/home/x", "ext4"), ("/data", "nfs4"), ("/data/y", "nfs4"), ("/database", "ext4"),
     ("/data/fast disk/z", "xfs")],
)  # fmt: skip
def test_the_innermost_mount_decides(path: str, kind: str) -> None:
    assert probe.file_system(path, MOUNTS) == kind


@pytest.mark.parametrize("kind, word", [("nfs4", "network"), ("tmpfs", "memory"), ("overlay", "container")])
def test_doctor_warns_of_disks_that_do_not_keep(
    tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch, kind: str, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "file_system", lambda *_: kind)
    assert word in cli("doctor", "--json").json()["warnings"][0]
