"""Layouts that lie about what a small tensor is part of: refused before memory is taken for it."""

from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import Damaged
from tests.hostile.forge import with_base
from tests.hostile.tiny import Files, write_files

GOLDEN = Path(__file__).parents[1] / "format" / "golden" / "v1_parts" / "run1"
LARGE = 1 << 40

LIES = {
    "one element, again and again": ["plain", [LARGE], [4], [[[[0], [LARGE]], 0, [0]]], []],
    "a small part of nobody's tensor": ["plain", [LARGE], [4], [[[[0], [4]], 0, [1]]], []],
    "the same elements twice": ["plain", [8], [4], [[[[0], [4]], 0, [1]], [[[4], [8]], 0, [1]]], []],
}


def golden() -> Files:
    return {str(p.relative_to(GOLDEN)): p.read_bytes() for p in GOLDEN.rglob("*") if p.is_file()}


def forged(lie: list[Any]) -> Files:
    def change(index: dict[str, Any]) -> None:
        index["content"]["layout"]["plain"] = lie

    return with_base(with_base(golden(), 0, 1, change), 2, 1, change)


@pytest.mark.parametrize("what", LIES)
def test_a_layout_is_not_believed(what: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="plain"):
        everstep.restore(write_files(forged(LIES[what]), tmp_path / "run"))


def test_the_same_run_with_the_truth_is_restored(tmp_path: Path) -> None:
    truth = ["plain", [4], [4], [[[[0], [4]], 0, [1]]], []]
    assert everstep.restore(write_files(forged(truth), tmp_path / "run")).step > 0
