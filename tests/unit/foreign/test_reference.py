"""Every reader finds what the system that wrote a checkpoint says is in it: each tensor, bit for bit, and no other."""

import subprocess
import sys

import pytest
import torch

from everstep.foreign.found import check, verify
from everstep.foreign.recognise import read
from tests.unit.foreign import fixtures


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_the_writer_is_recognised(name: str) -> None:
    assert read(fixtures.path(name)).kind == fixtures.KINDS[name]


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_every_tensor_equals_the_reference_bit_for_bit(name: str) -> None:
    found, wanted = fixtures.tensors(read(fixtures.path(name))), fixtures.reference(name)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8)), key


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_every_tensor_is_covered_exactly_once(name: str) -> None:
    check(read(fixtures.path(name)))


@pytest.mark.parametrize("name", fixtures.CHECKSUMMED)
def test_every_byte_of_every_tensor_is_proved(name: str) -> None:
    checkpoint = read(fixtures.path(name))
    assert all(part.place.crc32 is not None for part in checkpoint.tensors)
    assert verify(checkpoint) >= sum(place.nbytes for place in {part.place for part in checkpoint.tensors})


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_hyper_parameters_are_given_by_parameter_name(name: str) -> None:
    listed = read(fixtures.path(name)).objects.get("optimizer/param_groups", [])
    assert isinstance(listed, list)
    found = {key: group for group in listed for key in group["params"]}
    wanted = fixtures.groups(name)
    assert {key: {kind: found[key][kind] for kind in values} for key, values in wanted.items()} == wanted
    assert found.keys() == wanted.keys()


@pytest.mark.parametrize("name", fixtures.KINDS)
def test_nothing_in_a_real_checkpoint_is_unknown(name: str) -> None:
    assert read(fixtures.path(name)).unknown == ()


OBJECTS = [
    ("plain", "step", 3),
    ("dcp", "step", 3),
    ("dcp", "note", {"text": "kept"}),
    ("dcp_nested", "step", 3),
    ("mcore", "iteration", 7),
    ("mcore", "args", {"hidden_size": 6, "lr": 0.01}),
    ("mcore", "rng_state/shard_1_2", [{"seed": 41}]),
    ("zero1", "iteration", 3),
    ("zero2", "global_steps", 3),
    ("zero3", "global_samples", 24),
    ("zero3", "optimizer/loss_scaler", {"cur_scale": 1.0, "dynamic": False}),
    ("zero1_universal", "iteration", 3),
    ("zero3_universal", "iteration", 3),
]


@pytest.mark.parametrize("name, key, value", OBJECTS)
def test_plain_values_are_kept(name: str, key: str, value: object) -> None:
    assert read(fixtures.path(name)).objects[key] == value


def test_a_scheduler_is_kept() -> None:
    scheduler = read(fixtures.path("plain")).objects["scheduler"]
    assert isinstance(scheduler, dict)
    assert scheduler["last_epoch"] == 3


def test_tied_weights_are_held_once() -> None:
    assert read(fixtures.path("plain")).aliases == {"model/head.weight": "model/embed.weight"}


def test_buffers_that_differ_between_ranks_are_noted() -> None:
    assert any("bn.running_mean" in note for note in read(fixtures.path("zero3")).notes)


def test_reading_imports_none_of_the_writers() -> None:
    paths = [fixtures.path(name) for name in fixtures.KINDS]
    program = (
        f"import sys; from everstep.foreign.recognise import read; [read(path) for path in {paths}]; "
        "print({'torch', 'deepspeed', 'megatron', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"set()\n"
