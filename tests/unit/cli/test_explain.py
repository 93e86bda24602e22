"""`explain` says what a resume would read, and refuses a layout that does not fit, without reading a tensor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.cli.runs import Done

Cli = Callable[..., Done]

SPEC = """
from everstep.layout.language import Replicate, Shard
from everstep.layout.mesh import Mesh
from everstep.layout.spec import Rule, Spec

spec = Spec(Mesh((("tp", 3),)), ({rules}))
{more}
"""


def told(cli: Cli, run: Path, onto: object, *more: object) -> dict[str, Any]:
    done = cli("explain", run, "--onto", onto, "--json", *more)
    assert done.code == 0, done
    return dict(json.loads(done.out))


def test_one_process_wants_everything_once(cli: Cli, run: Path) -> None:
    found = told(cli, run, "single")
    (rank,) = found["ranks"]
    assert rank["writers"] == [0]
    assert rank["read_bytes"] == sum(w["base_bytes"] + w["record_bytes"] for w in found["writers"])
    assert rank["absent"] == []


def test_shards_want_everything_together_and_replicas_each(cli: Cli, run: Path) -> None:
    whole = told(cli, run, "single")["ranks"][0]["wanted_bytes"]
    assert sum(rank["wanted_bytes"] for rank in told(cli, run, "fsdp:4")["ranks"]) == whole
    assert [rank["wanted_bytes"] for rank in told(cli, run, "ddp:3")["ranks"]] == [whole] * 3


def test_ranks_that_were_not_there_are_named(cli: Cli, run: Path) -> None:
    done = cli("explain", run, "--onto", "fsdp:4")
    assert done.code == 0
    assert "ranks 1 to 3 are new" in done.out
    assert "everything is there" in done.out


def test_an_older_step_needs_fewer_records(cli: Cli, run: Path) -> None:
    newest, older = told(cli, run, "single"), told(cli, run, "single", "--step", 16)
    assert older["step"] == 16 < newest["step"]
    assert older["writers"][0]["records"] < newest["writers"][0]["records"]


def test_a_spec_of_the_users_own(cli: Cli, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.py"
    file.write_text(SPEC.format(rules="Rule('.*weight', (Shard('tp', 0),)), Rule('.*', (Replicate('tp'),))", more=""))
    assert len(told(cli, run, file)["ranks"]) == 3


def test_a_spec_that_overlooks_a_tensor_is_refused(cli: Cli, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.py"
    file.write_text(SPEC.format(rules="Rule('.*weight', (Shard('tp', 0),)),", more=""))
    done = cli("explain", run, "--onto", file)
    assert done.code == 2
    assert "no rule for" in done.err


def test_what_nobody_holds_is_named(cli: Cli, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.py"
    file.write_text(SPEC.format(rules="Rule('.*', (Replicate('tp'),)),", more="names = {'head.weight': (4, 4)}"))
    done = cli("explain", run, "--onto", file)
    assert done.code == 1
    assert "CANNOT BE RESTORED on rank 0: no writer holds all of head.weight" in done.out


def test_what_is_no_layout_is_said(cli: Cli, run: Path) -> None:
    done = cli("explain", run, "--onto", "sideways")
    assert done.code == 2
    assert "none of single, ddp:N, fsdp:N" in done.err
