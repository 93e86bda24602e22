"""A peer that is missing is skipped where nobody asked for it, and fails under `make peers`: a hole cannot hide."""

from pathlib import Path

import pytest

from tests.peers.worlds import REQUIRED, needs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["no_such_peer", "no_such_peer.core"])
def test_a_missing_peer_fails_where_it_is_required_and_is_skipped_elsewhere(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REQUIRED, "required")
    with pytest.raises(ModuleNotFoundError, match=f"{package} is not installed"):
        needs(package)
    monkeypatch.delenv(REQUIRED)
    assert [mark.args for mark in needs(package) if mark.name == "skipif"] == [(True,)]


def test_make_peers_requires_them_in_the_versions_that_are_pinned() -> None:
    assert f"{REQUIRED}=required" in (ROOT / "Makefile").read_text()
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {"torch", "deepspeed", "megatron-core", "transformers"} <= pinned
