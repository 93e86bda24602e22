"""`verify`: damage is exit code 1, whatever is damaged; everything else is 0."""

from pathlib import Path

import pytest

from tests.unit.cli.runs import flip

DAMAGE = {
    "a gradient": ("e00000003-00000003.seg", -400, "record"),
    "a gradient of an older branch": ("e00000002-00000002.seg", -400, "record"),
    "a record's head": ("e00000003-00000003.seg", 130, "segment"),
    "a segment's head": ("e00000001-00000002.seg", 20, "segment"),
    "a tensor": ("b000000000020-e00000003.safetensors", -20, "base"),
    "the head of a tensor file": ("b000000000020-e00000003.safetensors", 40, "base"),
    "an index": ("b000000000005-e00000001.json", 200, "base"),
    "the manifest": ("e00000003.json", 200, "manifest"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_flipped_byte_is_found_and_named(run: Path, cli, what: str) -> None:
    name, offset, kind = DAMAGE[what]
    flip(run / "w00000" / name, offset)
    done = cli("verify", run, "--json")
    assert done.code == 1
    assert {damage["kind"] for damage in done.json()["damages"]} == {kind}
    assert any(name.partition(".")[0] in d["what"] for d in done.json()["damages"])
    assert "DAMAGED" in cli("verify", run).out


def test_a_good_run_is_good(run: Path, cli) -> None:
    found = cli("verify", run, "--json").json()
    assert found["good"]
    assert (found["segments"], found["records"], found["bases"]) == (14, 31, 9)
    assert [branch["steps"] for branch in found["branches"]] == [[[0, 26]], [[0, 20]]]


def test_replay_meets_every_digest_both_ways(run: Path, cli) -> None:
    found = cli("verify", run, "--replay", "--json").json()
    legs = found["replay"]
    assert sum(leg["records"] for leg in legs) == 26 + 7
    assert all((leg["native"], leg["torch"], leg["agree"]) == (None, None, True) for leg in legs)
    assert all(leg["native_updates"] == leg["records"] for leg in legs)


def test_an_optimizer_of_the_users_is_not_replayed_and_that_is_said(odd: Path, cli) -> None:
    done = cli("verify", odd, "--replay")
    assert done.code == 0
    assert "NOT REPLAYED: optimizer 'main' is a " in done.out
    assert "not replayed: 2 of 2 stretches" in done.out


def test_a_torn_tail_is_reported_and_is_no_damage(odd: Path, cli, tmp_path: Path) -> None:
    from tests.unit.cli.runs import torn

    done = cli("verify", torn(tmp_path / "run"), "--json")
    assert done.code == 0
    assert "this is not damage" in done.json()["notes"][0]
