"""`everstep verify` proves every byte of such a checkpoint, and names what is damaged, without importing torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from everstep.cli.main import cli
from everstep.dcp import verify
from tests.unit.dcp.states import made, save


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "a", made(1))
    return tmp_path / "a"


def said(path: Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(cli, ["verify", str(path), "--json"], obj={})
    return done.exit_code, json.loads(done.output)


def test_every_byte_is_proved(saved: Path) -> None:
    code, found = said(saved)
    assert (code, found["damages"]) == (0, [])
    assert found["proved_bytes"] == sum(path.stat().st_size for path in saved.glob("*.distcp"))
    assert found["notes"] == []


def test_every_damaged_block_is_named(saved: Path) -> None:
    (path,) = saved.glob("*.distcp")
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    content[-10] ^= 1
    path.write_bytes(content)
    code, found = said(saved)
    assert code == 1
    assert found["proved_bytes"] == 0
    assert [" fail their checksum; they hold " in damage for damage in found["damages"]] == [True, True]


@pytest.mark.parametrize("what", ["cut", "gone", "index", "no index"])
def test_a_cut_or_lost_file_is_a_damage(what: str, saved: Path) -> None:
    (path,) = saved.glob("*.distcp")
    if what == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif what == "gone":
        path.unlink()
    elif what == "no index":
        (saved / ".metadata").unlink()
    else:
        (saved / ".metadata").write_bytes(b"\x80\x02}." + b" " * 100)
    damages = verify.prove(str(saved)).damages
    assert {"cut": "were written", "gone": "is missing", "index": "is not the one", "no index": "not finished"}[
        what
    ] in damages[-1]
    assert said(saved)[0] == 1


def test_proving_imports_no_torch(saved: Path) -> None:
    script = f"""
import sys
from everstep.dcp import verify
print(verify.prove({str(saved)!r}).damages, 'torch' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
