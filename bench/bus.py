"""How long training waits for a scalar while gigabytes are on their way from the GPU, and what pacing them costs.

python -m bench.bus [--quick] [--json FILE]

Needs a GPU. Decision 0014 says what came of it.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch

from bench.harness import Row, main
from everstep import native

MIB = 1 << 20
ALL = 1 << 40
PORTIONS = (ALL, 256 * MIB, 64 * MIB, 32 * MIB, 16 * MIB, 8 * MIB, 4 * MIB)
TENSOR_BYTES = 5 * MIB


class Journey:
    """Tensors that go to the host together, as a step's gradients do."""

    def __init__(self, nbytes: int) -> None:
        self.tensors = [
            torch.empty(TENSOR_BYTES, dtype=torch.uint8, device="cuda") for _ in range(nbytes // TENSOR_BYTES)
        ]
        self.host = torch.empty(len(self.tensors) * TENSOR_BYTES, dtype=torch.uint8, pin_memory=True)
        places = range(0, self.host.nbytes, TENSOR_BYTES)
        sources = [tensor.data_ptr() for tensor in self.tensors]
        self.copies = native.Copies(list(places), sources, [TENSOR_BYTES] * len(sources))
        self.stream = torch.cuda.Stream()
        self.words = torch.arange(native.Bus.NUMBERS, device="cuda"), torch.zeros(1, dtype=torch.int64).pin_memory()
        self.bus = native.Bus(self.stream.cuda_stream, os.eventfd(0), *(word.data_ptr() for word in self.words))

    def begin(self, portion: int) -> int:
        torch.cuda.synchronize()
        training = torch.cuda.current_stream().cuda_stream
        return int(self.bus.copy(self.copies, self.host.data_ptr(), training, portion))

    def end(self, number: int) -> None:
        while self.bus.asked() < number:
            time.sleep(1e-4)
        self.stream.synchronize()


def measure(quick: bool) -> Iterator[Row]:
    turns = 3 if quick else 15
    journey = Journey((200 if quick else 1400) * MIB)
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    scalar = torch.ones((), device="cuda")

    def alone(portion: int) -> float:
        began = time.perf_counter()
        journey.end(journey.begin(portion))
        return 1e3 * (time.perf_counter() - began)

    def read(portion: int) -> float:
        """Of the device's time: what the scalar takes after work of some milliseconds, as a loss does after a step."""
        number = journey.begin(portion)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(20):
            matrix @ matrix
        before.record()
        scalar.item()
        after.record()
        journey.end(number)
        after.synchronize()
        return before.elapsed_time(after)

    case = f"{journey.host.nbytes / 1e9:.2g} GB under way"
    idle = read_idle(scalar, turns)
    for portion in PORTIONS:
        name = "all at once" if portion == ALL else f"{portion // MIB} MiB at a time"
        yield Row(f"{case}, {name}", "they take", middle(alone, portion, turns), "ms", "-")
        yield Row(f"{case}, {name}", "a scalar takes", middle(read, portion, turns), "ms", f"idle bus: {idle:.2f} ms")
    journey.bus.close()


def read_idle(scalar: torch.Tensor, turns: int) -> float:
    """What reading it takes when nothing is on its way."""
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        began = time.perf_counter()
        scalar.item()
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found)


def middle(measured: Callable[[int], float], portion: int, turns: int) -> float:
    measured(portion)
    return statistics.median(measured(portion) for _ in range(turns))


if __name__ == "__main__":
    sys.exit(main("bus", measure))
