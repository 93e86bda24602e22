"""A checkpoint of another system, read where it lies: the same as after an import, and as carefully."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import everstep
from everstep.cli.main import main
from everstep.errors import Damaged, NotARun, StepNotHeld, Unsupported
from everstep.foreign import recognise
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from tests.unit.foreign.fixtures import CHECKSUMMED, KINDS, copied, path

UNSAID = {"mcore": "--optimizer"}
"""What does not say which optimizer it was: an import asks for it, too."""


@pytest.mark.parametrize("name", KINDS)
def test_it_is_what_an_import_makes_of_it(name: str, tmp_path: Path) -> None:
    if name in UNSAID:
        with pytest.raises(Unsupported, match=UNSAID[name]):
            everstep.restore(path(name))
        return
    arrive(path(name), str(tmp_path / "run"), wishes())
    expected, found = everstep.restore(tmp_path / "run"), everstep.restore(path(name))
    assert found.step == expected.step
    assert found.tensors.keys() == expected.tensors.keys()
    for key, tensor in expected.tensors.items():
        assert found.tensors[key].dtype == tensor.dtype
        assert torch.equal(found.tensors[key], tensor), key
    assert found.context == expected.context
    assert all(KINDS[name] in item.origin for item in found.ledger)


@pytest.mark.parametrize("name", CHECKSUMMED)
def test_a_flipped_byte_is_found(name: str, tmp_path: Path) -> None:
    theirs = copied(name, tmp_path)
    place = next(part.place for part in recognise.read(str(theirs)).tensors if part.place.nbytes > 8)
    content = bytearray(Path(place.path).read_bytes())
    content[place.offset + 5] ^= 1
    Path(place.path).write_bytes(content)
    with pytest.raises(Damaged, match="fail their checksums"):
        everstep.restore(theirs)


def test_it_holds_one_step_and_nothing_is_made_up() -> None:
    step = everstep.restore(path("plain")).step
    assert everstep.restore(path("plain"), step).step == step
    with pytest.raises(StepNotHeld, match=f"holds step {step} and no other"):
        everstep.restore(path("plain"), step + 1)


def test_what_is_neither_is_said_to_be_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NotARun):
        everstep.restore(tmp_path)
    with pytest.raises(NotARun):
        everstep.restore(tmp_path / "notes.txt")


def test_one_system_to_another_without_a_run_between(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", path("dcp"), str(tmp_path / "out"), "--format", "hf"])
    assert not ended.value.code
    expected = {n.removeprefix("model/"): t for n, t in everstep.restore(path("dcp")).tensors.items()}
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found
    assert all(torch.equal(tensor, expected.get(n, expected.get(f"buffer/{n}"))) for n, tensor in found.items())
