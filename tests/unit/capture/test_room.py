"""How much memory a device has to spare, from what torch and the driver say."""

import pytest
import torch

from everstep.capture import room
from everstep.capture.room import Room

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What is free on a device of 100 bytes, what torch has taken of it, what it has used of that, and may take."""
    said = {"free": 60, "reserved": 40, "most": 30, "share": 1.0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (said["free"], 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: said["reserved"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: said["most"])
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: said["share"])
    return said


def test_what_torch_has_taken_and_not_used_is_to_spare_as_well(said: dict[str, float]) -> None:
    measured = Room(DEVICE)
    measured.left(0)
    assert measured.left(5) == 70


def test_the_first_time_an_optimizer_has_its_state_still_to_make(said: dict[str, float]) -> None:
    assert Room(DEVICE).left(5) == 70 - room.TO_COME * 5


def test_a_share_of_the_device_is_a_limit_and_so_are_others_on_it(said: dict[str, float]) -> None:
    measured = Room(DEVICE)
    measured.left(0)
    said["share"] = 0.45
    assert measured.left(1) == 15
    said.update(share=1.0, free=0)
    assert measured.left(1) == 10


def test_a_peak_that_was_forgotten_is_remembered_here(said: dict[str, float]) -> None:
    measured = Room(DEVICE)
    measured.left(0)
    said["most"] = 1  # torch.cuda.reset_peak_memory_stats
    assert measured.left(1) == 70


def test_looking_is_rare_once_training_has_its_memory(said: dict[str, float]) -> None:
    measured = Room(DEVICE)
    for _ in range(room.LOOK_EVERY + 1):
        measured.left(1)
    said["free"] = 0
    assert [measured.left(1) for _ in range(room.LOOK_EVERY)] == [70] * (room.LOOK_EVERY - 1) + [10]
