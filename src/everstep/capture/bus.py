"""The way from a device to the host, shared with training.

Whatever stream asks, a device copies to the host in the order in which it was asked. Were a step's gradients asked for
at once, a loss that training reads just after would come behind all of them: 52 ms for 3 GB. So a thread (`native.Bus`)
asks for a portion at a time. Torch knows nothing of what it has not asked for yet: that memory is held here.

Where the device has less memory to spare, everything is asked for at once, and torch uses the memory again when it has
been copied. Where it has none, training waits for that: else its next allocation might fail.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import torch

from everstep import native
from everstep.capture.room import Room

Held = deque[tuple[int, Sequence[torch.Tensor]]]
EVERYTHING = 1 << 63
PORTION_BYTES = 8 << 20
"""0.15 ms of a bus of 55 GB/s."""
SMALL_BYTES = 1 << 20
"""For so little there is always room."""
ROOMY = 2
"""More is held while the device has so many times as much to spare."""
CROWDED_AFTER = 2
GLANCE_SECONDS = 5e-5
ARRIVE_SECONDS = 10.0
ENOUGH = 1.25
"""Less would not be enough, as memory is handed out in pieces."""


class Bus:
    """Copies of one device, in the order of the calls; their numbers count them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._held: Held = deque()
        self._lock = threading.Lock()
        self._room = Room(device)
        self._owed: list[torch.Tensor] = []
        self.owed: int | None = None
        """The last copy that training has to wait for before it goes on: call `repay` then."""
        self._crowded = 0
        wakes, ended = os.eventfd(0), threading.Event()
        numbers = torch.arange(native.Bus.NUMBERS, device=device)
        flag = torch.zeros((), dtype=torch.int64, pin_memory=True)
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()
            self._native = native.Bus(self.stream.cuda_stream, wakes, numbers.data_ptr(), flag.data_ptr())
        arguments = (self._native, wakes, ended, self._held, self._lock, self.stream)
        threading.Thread(target=_listen, args=arguments, name="everstep-bus", daemon=True).start()
        self._end = weakref.finalize(self, _end, self._native, wakes, ended, self.stream, (numbers, flag))

    def crowds(self, nbytes: int) -> bool:
        """Whether so much would be more than the device has to spare."""
        if nbytes <= SMALL_BYTES:
            return False
        found = self._room.left(nbytes) < ENOUGH * nbytes
        self._crowded = self._crowded + 1 if found else 0
        return found

    @property
    def crowded(self) -> bool:
        """Whether there has been no memory to spare for some steps: the first one is careful."""
        return self._crowded > CROWDED_AFTER

    def copy(
        self, copies: native.Copies, address: int, tensors: Sequence[torch.Tensor] = (), portion: int = PORTION_BYTES
    ) -> int:
        """To the block at `address`, what training's stream has made by now. `tensors` live until they are copied."""
        training, nbytes = torch.cuda.current_stream(self._device).cuda_stream, sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            held = sum(tensor.nbytes for _, tensors in self._held for tensor in tensors)
        left = self._room.left(nbytes) if nbytes > SMALL_BYTES else None
        if left is None or left >= ROOMY * (held + nbytes):
            with self._lock:  # who lets go of it must find it there
                number = self._native.copy(copies, address, training, portion)
                self._held.append((number, tensors))
            return number
        number = self._native.copy(copies, address, training, portion)
        self._native.hurry(number)
        if self.crowds(nbytes):
            self._owed += tensors
            self.owed = number
        else:
            for tensor in tensors:
                tensor.record_stream(self.stream)
        return number

    def repay(self) -> None:
        """Training waits for what it owes: from now on that memory may be used again."""
        self._owed, self.owed = [], None

    def write(self, address: int, value: int) -> None:
        """A word, once everything before it is there."""
        self._native.write(address, value)

    def hold_back(self, training: torch.cuda.Stream, number: int) -> None:
        """Training's stream waits for what has this number. It is asked for at once: nobody gains if it comes later."""
        self._native.hurry(number)
        training.wait_event(self.stream.record_event())

    def arrive(self, number: int) -> None:
        """Wait until what has this number is there, in no hurry."""
        deadline = time.monotonic() + ARRIVE_SECONDS
        while self._native.asked() < number and time.monotonic() < deadline:
            time.sleep(GLANCE_SECONDS)
        self.stream.synchronize()

    def synchronize(self) -> None:
        """Wait until everything is there."""
        self._native.hurry(EVERYTHING)
        self.stream.synchronize()
        self.repay()

    def close(self) -> None:
        """Nothing is copied any more."""
        self._end()


def _listen(
    bus: native.Bus, wakes: int, ended: threading.Event, held: Held, lock: threading.Lock, stream: torch.cuda.Stream
) -> None:
    """Let go of what is in the stream. A thread of its own, because training may not call for the length of a step."""
    while not ended.is_set():
        os.eventfd_read(wakes)
        with lock:
            asked = bus.asked()
            done = [held.popleft()[1] for _ in range(sum(number <= asked for number, _ in held))]
        for tensors in done:
            for tensor in tensors:
                tensor.record_stream(stream)
        done, tensors, tensor = [], (), None  # type: ignore[assignment]
    os.close(wakes)


def _end(
    bus: native.Bus, wakes: int, ended: threading.Event, stream: torch.cuda.Stream, words: tuple[torch.Tensor, ...]
) -> None:
    """`words` are copied behind every portion: they are nobody else's before the last one has arrived."""
    bus.close()
    ended.set()
    os.eventfd_write(wakes, 1)
    with suppress(RuntimeError):  # a device that has failed copies nothing any more
        stream.synchronize()
    del words
