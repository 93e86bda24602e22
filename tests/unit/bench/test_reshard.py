"""The reshard benchmark counts what it says it counts, and its paper model is of the size it claims."""

import math
import os
from pathlib import Path

import pytest

from bench.reshard import gauge, scale
from bench.reshard.gauge import Taken, together


def test_a_raw_read_reads_so_many_bytes_around_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("a", 3000), ("b", 5000), ("c", 0)):
        (tmp_path / name).write_bytes(bytes(size))
    paths = gauge.files(tmp_path)
    asked, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: asked.append(preadv(*given)) or asked[-1])
    assert gauge.gauge(lambda: gauge.read(paths, 7000, 10_500, threads=3)).written == 0
    assert sum(asked) == 10_500


def test_spans_follow_each_other_through_all_files() -> None:
    paths = [Path("a"), Path("b")]
    assert list(gauge._spans(paths, [3, 5], 2, 9)) == [(paths[0], 2, 1), (paths[1], 0, 5), (paths[0], 0, 3)]


def test_ranks_that_began_at_once_took_as_long_as_the_slowest() -> None:
    found = together([Taken(1.0, 1, 0, 7), Taken(3.0, 2, 5, 4)])
    assert found == Taken(3.0, 3, 5, 7)


def test_the_paper_model_has_a_trillion_parameters() -> None:
    assert 1.0e12 < sum(map(math.prod, scale.shapes().values())) < 1.02e12


def test_a_plan_covers_all_that_a_rank_wants() -> None:
    source, target = scale.Grid(4, 8, 2), scale.Grid(2, 16, 2, flat=True)
    planned = scale.plan(source, target, target.ranks - 1)
    assert planned.moves > 0
    assert 1 < planned.looked < source.ranks
