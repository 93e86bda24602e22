"""`verify` of what others wrote: good ones are good, and a flipped byte is found where the format has checksums."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.foreign import recognise
from tests.unit.cli.runs import Done

Cli = Callable[..., Done]
FIXTURES = Path(__file__).parents[2] / "fixtures" / "foreign"
KINDS = ["dcp", "dcp_nested", "hf", "mcore", "plain", "zero1", "zero2", "zero3"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_peer_wrote_is_good(kind: str, cli: Cli) -> None:
    done = cli("verify", FIXTURES / kind)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("good\n")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hf"])
def test_a_flipped_byte_is_found(kind: str, tmp_path: Path, cli: Cli) -> None:
    folder = shutil.copytree(FIXTURES / kind, tmp_path / kind)
    part = max(recognise.read(str(folder)).tensors, key=lambda found: found.place.nbytes)
    file = Path(part.place.path)
    content = bytearray(file.read_bytes())
    content[part.place.offset + part.place.nbytes // 2] ^= 4
    file.write_bytes(content)
    done = cli("verify", folder, "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert not said["good"]
    assert file.name in said["damages"][0]


def test_a_format_without_checksums_says_so(cli: Cli) -> None:
    said = json.loads(cli("verify", FIXTURES / "hf", "--json").out)
    assert said["proved_bytes"] == 0
    assert any("checksum" in note for note in said["notes"])


def test_a_folder_of_something_else_is_an_error(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    done = cli("verify", tmp_path)
    assert done.code == 2
    assert "Looked for" in done.err
