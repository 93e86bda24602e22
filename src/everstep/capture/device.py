"""Brings CUDA tensors' bytes to the host on a stream of its own (`bus`), while training goes on.

Nothing here waits for the device but `synchronize`. States are read in place: the optimizer's next step waits for that,
on the device, not in Python. Gradients are read in place where nobody writes to them again (`freshness`), else packed
on the device first, in training's own order.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from everstep import native
from everstep.capture.bus import Bus
from everstep.capture.freshness import Freshness
from everstep.capture.mover import HostMover, Parcel, Target, Tensors, fill, gaps
from everstep.capture.stride import LEAST_BYTES, Stride
from everstep.capture.tensors import in_order
from everstep.capture.workbench import Load, Workbench, parts
from everstep.native import driver, gpu
from everstep.ring.ring import E_DEVICE, Ring
from everstep.store.memory import Block
from everstep.types import Tensor

PROBE_PORTIONS = 32
PROBES = 4
REHEARSAL_BYTES = 4096
CROWDED = (
    "this GPU has no memory to spare: training waits at every step until its gradients are copied. Free some, or use "
    "Settings(source='state'), which takes none; Settings(gradients='bf16') shortens the wait"
)
NOTHING = native.Copies((), (), ())


class DeviceMover:
    """`Mover` for one CUDA device. Tensors in host memory that come along are copied at once."""

    lasting = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bus = Bus(device)
        self._workbench: Workbench | None = None
        self._near = HostMover()
        self._tables: dict[str, gpu.Table] = {}
        self._routes: WeakKeyDictionary[Parcel, Route] = WeakKeyDictionary()
        self._fresh: dict[str, Freshness] = {}
        self._read: set[str] = set()
        self._in_place: dict[str, bool] = {}
        self._pinned: list[int] = []
        self._reading: Reading | None = None
        self._stride = Stride()
        self._waits: deque[tuple[torch.cuda.Event, torch.cuda.Event, Reading | None]] = deque()
        self._waited = 0.0
        self.bus_bytes_per_s: float | None = _measured(device, self._bus)

    @property
    def complaint(self) -> str | None:
        return CROWDED if self._bus.crowded else None

    @property
    def waited_seconds(self) -> float:
        while self._waits and self._waits[0][1].query():  # type: ignore[no-untyped-call]
            began, ended, reading = self._waits.popleft()
            seconds = began.elapsed_time(ended) / 1e3
            self._waited += seconds
            if reading is not None and self.bus_bytes_per_s is not None:
                self._stride.arrived(reading.portion, seconds, reading.portion / self.bus_bytes_per_s)
        return self._waited

    def rehearse(self, dtypes: Collection[torch.dtype], *, rounds: bool) -> None:
        flat = torch.empty(REHEARSAL_BYTES, dtype=torch.uint8, device=self._device)
        for dtype in dtypes:
            gpu.pack([torch.zeros(REHEARSAL_BYTES // dtype.itemsize, dtype=dtype, device=self._device)], flat, [0])
        if rounds:
            gradient = torch.zeros(REHEARSAL_BYTES // 4, device=self._device)
            gpu.round_pack([gradient], flat.view(torch.bfloat16), [0])

    def pin(self, block: Block) -> None:
        torch.cuda.set_device(self._device)  # threads that pin have no context of their own yet
        driver.pin(block.address, block.nbytes)
        self._pinned.append(block.address)

    def unpin(self, block: Block) -> None:
        if block.address in self._pinned:
            self.synchronize()
            self._pinned.remove(block.address)
            driver.unpin(block.address)

    def copy(self, target: Target, parcel: Parcel) -> None:
        pointers = [tensor.data_ptr() for tensor in parcel.tensors]
        route = self._routes.get(parcel)
        if route is None or route.pointers != pointers or not all(t.is_contiguous() for t in parcel.tensors):
            route = self._routes[parcel] = Route(parcel, pointers)
        if route.near is not None:
            self._near.copy(target, route.near)
        portion = self._stride.nbytes
        number = self._bus.copy(route.copies, target.address, list(route.ordered), portion)
        self._reading = Reading(number, portion)
        route.ordered.clear()
        fill(target.memory, route.gaps)

    def take(
        self, what: str, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors,
        *, brief: bool, sent: Collection[int] = (),
    ) -> None:  # fmt: skip
        far = all(tensor.device == self._device for tensor in tensors)
        round_to = [
            told.dtype == "BF16" and tensor.dtype is torch.float32
            for told, tensor in zip(described, tensors, strict=True)
        ]
        if not far or (any(round_to) and not all(round_to)):
            self._near.take(what, target, described, places, tensors, brief=brief)
            return
        if not tensors:
            return
        parcel = Parcel(described, places, tensors)
        if any(round_to) or brief or not self._direct(what, tensors):
            self._pack(what, target, parcel, rounds=any(round_to))
        else:
            rest = _part(parcel, [at for at in range(len(tensors)) if at not in sent])
            self.send(target, rest.described, rest.places, rest.tensors)
        fill(target.memory, gaps(described, places))

    def in_place(self, what: str) -> bool:
        return self._in_place.get(what, False)

    def send(self, target: Target, described: Sequence[Tensor], places: Sequence[int], tensors: Tensors) -> None:
        pointers, sizes = [tensor.data_ptr() for tensor in tensors], [told.nbytes for told in described]
        # Others of the same memory: whether these tensors live on is how `freshness` knows them to be fresh.
        self._bus.copy(native.Copies(places, pointers, sizes), target.address, [tensor.detach() for tensor in tensors])

    def vouch(self, ring: Ring, sequence: int) -> None:
        self._bus.write(ring.place(sequence) + 8 * E_DEVICE, sequence + 1)
        self._repay()

    def settle(self) -> bool:
        if self._reading is not None:  # what was packed may travel on
            self._hold_back(self._reading.number, self._reading)
            self._reading = None
        untouched = [self._fresh[what].untouched() for what in self._read]
        self._read.clear()
        return all(untouched)

    def synchronize(self) -> None:
        self._bus.synchronize()

    def release(self) -> None:
        try:
            self._bus.synchronize()
        finally:
            self._bus.close()
        while self._pinned:
            driver.unpin(self._pinned.pop())

    def _pack(self, what: str, target: Target, parcel: Parcel, *, rounds: bool) -> None:
        """By way of memory on the device: all at once, or little by little where that has none to spare."""
        load = Load(parcel.tensors, parcel.places, [told.nbytes for told in parcel.described])
        if not self._bus.crowds(load.packed[1]):
            self._send_packed(what, target, load, None, rounds=rounds)
            return
        bench = self._workbench = self._workbench or Workbench(self._device)
        for number, part in enumerate(parts(load)):
            fits = part.packed[1] <= bench.flat.nbytes
            self._send_packed(f"{what}/{number}", target, part, bench if fits else None, rounds=rounds)

    def _send_packed(self, what: str, target: Target, load: Load, workbench: Workbench | None, *, rounds: bool) -> None:
        packed, nbytes = load.packed
        if workbench is None:
            flat = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        else:
            flat = workbench.flat
            if workbench.sent is not None:
                self._hold_back(workbench.sent)
        table = self._tables.setdefault(what, gpu.Table())
        if rounds:
            gpu.round_pack(load.tensors, flat.view(torch.bfloat16), [place // 2 for place in packed], table)
        else:
            gpu.pack(load.tensors, flat, packed, table)
        spans = joined([(to, flat.data_ptr() + at) for to, at in zip(load.places, packed, strict=True)], load.sizes)
        copies = native.Copies(*zip(*spans, strict=True)) if spans else NOTHING
        if workbench is None:
            self._bus.copy(copies, target.address, [flat])
            self._repay()
        else:
            workbench.sent = self._bus.copy(copies, target.address)

    def _repay(self) -> None:
        if self._bus.owed is not None:
            self._hold_back(self._bus.owed)
            self._bus.repay()

    def _hold_back(self, number: int, reading: "Reading | None" = None) -> None:
        """Training goes on, on the device, when the copy with this number is done."""
        training = torch.cuda.current_stream(self._device)
        began = training.record_event(_clock())
        self._bus.hold_back(training, number)
        self._waits.append((began, training.record_event(_clock()), reading))

    def _direct(self, what: str, tensors: Tensors) -> bool:
        """Whether these are read in place; then they are looked at again when they are settled."""
        fresh = self._fresh.setdefault(what, Freshness())
        plain = all(tensor.is_contiguous() for tensor in tensors) and not any(tensor.is_neg() for tensor in tensors)
        self._in_place[what] = fresh.direct(tensors) and plain
        if self._in_place[what]:
            self._read.add(what)
        return self._in_place[what]


@dataclass(frozen=True, slots=True)
class Reading:
    """The last copy that reads a state in place: its number, and how much of it is asked for at a time."""

    number: int
    portion: int


class Route:
    """How a parcel travels; made anew when one of its tensors has moved."""

    def __init__(self, parcel: Parcel, pointers: list[int]) -> None:
        described, places, tensors = parcel.described, parcel.places, parcel.tensors
        far = [at for at, tensor in enumerate(tensors) if tensor.device.type == "cuda"]
        near = [at for at, tensor in enumerate(tensors) if tensor.device.type != "cuda"]
        held = [in_order(tensors[at].detach()) for at in far]
        self.pointers = pointers
        self.near = _part(parcel, near) if near else None
        self.copies = native.Copies(
            [places[at] for at in far], [tensor.data_ptr() for tensor in held], [described[at].nbytes for at in far]
        )
        self.gaps = gaps(described, places)
        self.ordered = [tensor for tensor, at in zip(held, far, strict=True) if tensor.data_ptr() != pointers[at]]
        """Copies in logical order, for this journey only."""
        if self.ordered:
            self.pointers = []  # such a route is not taken twice


def _clock() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _part(parcel: Parcel, which: Sequence[int]) -> Parcel:
    described, places, tensors = parcel.described, parcel.places, parcel.tensors
    return Parcel([described[at] for at in which], [places[at] for at in which], [tensors[at] for at in which])


def _measured(device: torch.device, bus: Bus) -> float:
    """Bytes per second from this device to pinned host memory, in portions, as a state travels."""
    source = torch.empty(LEAST_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty(LEAST_BYTES, dtype=torch.uint8, pin_memory=True)
    portions = [LEAST_BYTES] * PROBE_PORTIONS
    copies = native.Copies([0] * len(portions), [source.data_ptr()] * len(portions), portions)
    found: list[float] = []
    for _ in range(PROBES):
        torch.cuda.current_stream(device).synchronize()
        began = time.perf_counter()
        bus.arrive(bus.copy(copies, target.data_ptr(), portion=LEAST_BYTES))
        found.append(time.perf_counter() - began)
    return sum(portions) / min(found)


def joined(ways: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Copies as (target, source, length); those that follow each other on both sides are one."""
    spans: list[tuple[int, int, int]] = []
    for (target, source), nbytes in zip(ways, sizes, strict=True):
        if spans and (spans[-1][0] + spans[-1][2], spans[-1][1] + spans[-1][2]) == (target, source):
            spans[-1] = (*spans[-1][:2], spans[-1][2] + nbytes)
        elif nbytes:
            spans.append((target, source, nbytes))
    return spans
