"""How long training waits for a scalar while gigabytes are on their way from the GPU, and what pacing them costs: on a
device that does nothing else, and beside training.

python -m bench.bus [--quick] [--json FILE]

Needs a GPU. Decision 0014 says what came of it.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from bench.harness import Row, main
from bench.models import build
from bench.overhead.blocks import timed
from everstep import native
from everstep.capture.mover import aligned

MIB = 1 << 20
ALL = 1 << 40
PORTIONS = (ALL, 256 * MIB, 64 * MIB, 32 * MIB, 16 * MIB, 8 * MIB, 4 * MIB)
TENSOR_BYTES = 5 * MIB


class Journey:
    """Tensors that go to the host together, as a step's gradients do, or a state."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        sizes = [tensor.nbytes for tensor in tensors]
        places, total = aligned(sizes)
        self.host = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        self.copies = native.Copies(places, [tensor.data_ptr() for tensor in tensors], sizes)
        self.stream = torch.cuda.Stream()
        self.words = torch.arange(native.Bus.NUMBERS, device="cuda"), torch.zeros(1, dtype=torch.int64).pin_memory()
        self.bus = native.Bus(self.stream.cuda_stream, os.eventfd(0), *(word.data_ptr() for word in self.words))

    def begin(self, portion: int) -> int:
        training = torch.cuda.current_stream().cuda_stream
        return int(self.bus.copy(self.copies, self.host.data_ptr(), training, portion))

    def end(self, number: int) -> None:
        while self.bus.asked() < number:
            time.sleep(1e-4)
        self.stream.synchronize()


def measure(quick: bool) -> Iterator[Row]:
    if not torch.cuda.is_available():
        raise SystemExit("this needs a GPU")
    turns = 3 if quick else 15
    count = (200 if quick else 1400) * MIB // TENSOR_BYTES
    journey = Journey([torch.empty(TENSOR_BYTES, dtype=torch.uint8, device="cuda") for _ in range(count)])
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    scalar = torch.ones((), device="cuda")

    def alone(portion: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        journey.end(journey.begin(portion))
        return 1e3 * (time.perf_counter() - began)

    def read(portion: int) -> float:
        """Of the device's time: what the scalar takes after work of some milliseconds, as a loss does after a step."""
        torch.cuda.synchronize()
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
    yield from beside("gpt-124m" if quick else "gpt-355m", 5 if quick else 12)


def beside(name: str, steps: int) -> Iterator[Row]:
    """A whole state, copied beside each step of a program that keeps the driver busy: eager, so with many launches."""
    program = build(name, compiled=False, device=torch.device("cuda"))
    timed(program, 3)
    moments = [value for held in program.optimizer.state.values() for value in held.values()]
    journey = Journey([*(parameter.detach() for parameter in program.model.parameters()), *moments])
    under_way: list[tuple[int, torch.cuda.Event]] = []
    arrived: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def join(*_: object) -> None:
        """The optimizer is about to step: it waits until the state is copied, on the device."""
        if under_way:
            number, began = under_way.pop()
            journey.bus.hurry(number)
            arrived.append((began, journey.stream.record_event(torch.cuda.Event(enable_timing=True))))
            torch.cuda.current_stream().wait_event(arrived[-1][1])

    program.optimizer.register_step_pre_hook(join)
    case = f"a state of {journey.host.nbytes / 1e9:.2g} GB beside {name} eager"
    plain = timed(program, steps, warm=4, warm_s=2.0).step_s
    for portion in PORTIONS:

        def send(_at: int, portion: int = portion) -> None:
            began = torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
            under_way.append((journey.begin(portion), began))

        step = timed(program, steps, send, warm=4, warm_s=1.0).step_s
        join()
        torch.cuda.synchronize()
        took = statistics.median(began.elapsed_time(ended) for began, ended in arrived[-steps:])
        each = "all at once" if portion == ALL else f"{portion // MIB} MiB at a time"
        yield Row(f"{case}, {each}", "it takes", took, "ms", "until the last byte is there")
        yield Row(f"{case}, {each}", "a step takes", 1e3 * step, "ms", f"without: {1e3 * plain:.1f} ms")
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
