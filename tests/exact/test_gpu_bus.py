"""Copies from a GPU, a little at a time: every byte of what was there when it was asked for, and nobody waits long."""

import os
import time
from collections.abc import Iterator

import pytest
import torch

from everstep import native
from everstep.capture import bus as module
from everstep.capture.bus import Bus

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture(params=[module.PORTION_BYTES, 1_000_003], ids=["portions", "small portions"])
def bus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    monkeypatch.setattr(module, "PORTION_BYTES", request.param)
    made = Bus(torch.device("cuda", 0))
    yield made
    made.close()


@pytest.fixture(params=["held", "at once", "waited for"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "held":
        monkeypatch.setattr(module, "ROOMY", 1 << 40)  # no device has so much to spare
    if request.param == "waited for":
        monkeypatch.setattr(module, "ENOUGH", 1 << 40)
    return str(request.param)


def repay(bus: Bus) -> None:
    """As the mover does when a step is committed."""
    if bus.owed is not None:
        bus.hold_back(torch.cuda.current_stream(), bus.owed)
        bus.repay()


def noise(nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")


def copies(tensors: list[torch.Tensor]) -> tuple[native.Copies, torch.Tensor]:
    sizes = [tensor.nbytes for tensor in tensors]
    places = [sum(sizes[:at]) for at in range(len(sizes))]
    made = native.Copies(places, [tensor.data_ptr() for tensor in tensors], sizes)
    return made, torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=True)


@pytest.mark.parametrize("hurried", [False, True])
def test_every_byte_arrives(bus: Bus, way: str, hurried: bool) -> None:
    tensors = [noise(size) for size in (1, 700, 5 * MIB + 3, 80 * MIB, 64, 33 * MIB)]
    wanted = torch.cat(tensors).cpu()
    made, host = copies(tensors)
    number = bus.copy(made, host.data_ptr(), tensors)
    if hurried:
        bus.hold_back(torch.cuda.current_stream(), number)
        torch.cuda.current_stream().synchronize()
    else:
        bus.synchronize()
    assert torch.equal(host, wanted), way


def test_what_is_freed_is_not_overwritten_before_it_is_copied(bus: Bus, way: str) -> None:
    for _ in range(5):
        tensors = [noise(24 * MIB) for _ in range(12)]
        wanted = torch.cat(tensors).cpu()
        torch.cuda._sleep(20_000_000)  # the copies cannot begin before this
        made, host = copies(tensors)
        bus.copy(made, host.data_ptr(), [tensor.detach() for tensor in tensors])
        del tensors
        repay(bus)
        for _ in range(24):
            torch.zeros(24 * MIB, dtype=torch.uint8, device="cuda")  # on training's stream, which does not wait
        bus.synchronize()
        assert torch.equal(host, wanted), way


def test_what_is_held_is_let_go_of_without_a_call(bus: Bus) -> None:
    tensors = [noise(64 * MIB)]
    made, host = copies(tensors)
    torch.cuda.synchronize()
    taken = torch.cuda.memory_allocated()
    bus.copy(made, host.data_ptr(), [tensors.pop().detach()])
    ends = time.monotonic() + 10
    while torch.cuda.memory_allocated() > taken - 64 * MIB:
        assert time.monotonic() < ends, "held for ever"
        time.sleep(0.001)


def test_a_word_comes_after_what_was_copied_before_it(bus: Bus) -> None:
    word = torch.zeros(1, dtype=torch.int64, pin_memory=True)
    for value in range(1, 9):
        tensors = [noise(48 * MIB)]
        wanted = tensors[0].cpu()
        made, host = copies(tensors)
        bus.copy(made, host.data_ptr(), tensors)
        bus.write(word.data_ptr(), value)
        ends = time.monotonic() + 10
        while int(word[0]) != value:
            assert time.monotonic() < ends
        assert torch.equal(host, wanted)


def test_a_loss_is_read_while_gigabytes_travel(bus: Bus) -> None:
    tensors = [noise(64 * MIB) for _ in range(32)]
    made, host = copies(tensors)
    loss = torch.ones((), device="cuda")
    waits = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        bus.copy(made, host.data_ptr(), tensors)
        time.sleep(0.004)
        asked = time.perf_counter()
        loss.item()
        waits.append(time.perf_counter() - asked)
        bus.synchronize()
        whole = time.perf_counter() - began
    assert min(waits) < 0.2 * whole, f"waited {waits} of {whole} s"


def test_a_closed_bus_refuses_and_closing_twice_is_no_matter() -> None:
    made = Bus(torch.device("cuda", 0))
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.write(0, 0)


def test_a_fork_leaves_it_alone(bus: Bus) -> None:
    child = os.fork()
    if child == 0:
        bus.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    test_every_byte_arrives(bus, "after a fork", hurried=False)
