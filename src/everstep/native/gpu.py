"""Many CUDA tensors in one launch: digested, rounded and packed, or packed. Queued on the current stream, not awaited.

The kernels find the tensors through a table in device memory. A `Table` kept between calls is uploaded again only when
something moved; a call without one makes its own. Bits are moved, never numbers: results are exact and the same in
every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from everstep.types import ALIGN, Pair

# 16 elements in a thread keep enough loads in flight and leave registers for seven blocks on a multiprocessor; 32 KiB
# in a program pay for finding its tensor and for its two atomic additions.
_WARPS = 4
_BLOCK_ELEMENTS = {1: 2048, 2: 2048, 4: 2048, 8: 1024}
_CHUNK_BYTES = 1 << 15
_ACCESS_BYTES = 16
_BFLOAT16_BYTES = 2


def digests(tensors: Sequence[torch.Tensor], table: Table | None = None) -> torch.Tensor:
    """The two sums of each tensor, a row of int64 on the tensors' device; `pairs` reads them as `native.digest`'s."""
    if not tensors:
        return torch.zeros((0, 2), dtype=torch.int64)
    table = table or Table()
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        held = table.hold(tensors, range(len(tensors)), 1)
        sums = torch.zeros((len(held), 2), dtype=torch.int64, device=held[0].device)
        from everstep.native import gpu_kernels

        for launch in table.launches:
            word = gpu_kernels.WORDS[launch.width]
            gpu_kernels.digest[launch.grid](launch.rows, launch.owners, sums, word, **launch.shape)
    return sums


def pairs(sums: torch.Tensor) -> list[Pair]:
    """What `digests` found, as `native.digest` returns it. Waits for the device."""
    return [(low % (1 << 64), high % (1 << 64)) for low, high in sums.tolist()]


def round_pack(
    gradients: Sequence[torch.Tensor], flat: torch.Tensor, places: Sequence[int], table: Table | None = None
) -> None:
    """Round float32 gradients to bfloat16, as `to(torch.bfloat16)` does: into `flat`, and in the gradients themselves.

    Each begins at its place, an element of `flat` and a multiple of 32; what lies between places is left alone.
    Values that bfloat16 holds already are not written back, so that where autocast made them nothing is.
    """
    if not gradients:
        return
    table = table or Table()
    with torch.cuda.device_of(gradients[0]):  # type: ignore[no-untyped-call]
        held = table.hold(gradients, places, ALIGN // _BFLOAT16_BYTES)
        _check_target(flat, torch.bfloat16, held[0].device, table.elements_end)
        if table.dtypes != {torch.float32}:
            raise ValueError(f"round_pack takes float32 gradients, not {table.dtypes}.")
        from everstep.native import gpu_kernels

        for launch in table.launches:
            gpu_kernels.round_pack[launch.grid](launch.rows, launch.owners, flat.view(torch.int16), **launch.shape)
        if held is not gradients:
            for gradient, rounded in zip(gradients, held, strict=True):
                if rounded.data_ptr() != gradient.data_ptr():
                    gradient.detach().copy_(rounded)


def pack(
    tensors: Sequence[torch.Tensor], flat: torch.Tensor, places: Sequence[int], table: Table | None = None
) -> None:
    """Copy each tensor's bytes, in logical order, into the uint8 `flat` from its place on, a multiple of 64."""
    if not tensors:
        return
    table = table or Table()
    with torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
        held = table.hold(tensors, places, ALIGN)
        _check_target(flat, torch.uint8, held[0].device, table.bytes_end)
        from everstep.native import gpu_kernels

        for launch in table.launches:
            word = gpu_kernels.WORDS[launch.width]
            gpu_kernels.pack[launch.grid](launch.rows, launch.owners, flat, word, **launch.shape)


@dataclass(frozen=True, slots=True)
class Launch:
    """Tensors of one element width whose addresses allow the same accesses, as the kernels' arguments."""

    rows: torch.Tensor
    owners: torch.Tensor
    width: int
    shape: dict[str, int]

    @property
    def grid(self) -> tuple[int]:
        return (self.owners.numel(),)


class Table:
    """Where the tensors of the last call lie, in device memory, for a next call with the same ones.

    Every call compares addresses, lengths, dtypes, places and stream with what was uploaded: memory given back and
    handed out again is never mistaken for what it was, and no stream reads what another is still uploading. Calls
    that alternate between tensors or streams want a table each. Not for two threads at once.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.dtypes: set[torch.dtype] = set()
        self.elements_end = 0
        self.bytes_end = 0
        self._kinds: tuple[list[int], list[torch.dtype]] = [], []
        self._lazy: list[int] = []
        self._uploaded: tuple[list[int], list[int], int, int] | None = None

    def hold(self, tensors: Sequence[torch.Tensor], places: Sequence[int], align: int) -> Sequence[torch.Tensor]:
        """Describe `tensors` to the kernels. Returns what is described: copies where bytes lie in another order."""
        kinds = list(map(torch.Tensor.numel, tensors)), [tensor.dtype for tensor in tensors]
        if kinds != self._kinds:
            self._uploaded = None
            self._kinds, self.dtypes = kinds, set(kinds[1])
            # A contiguous tensor's bytes may stand for others only if it is complex, or a single imaginary part.
            several = zip(*kinds, strict=True)
            self._lazy = [at for at, (count, dtype) in enumerate(several) if count < 2 or dtype.is_complex]
        held = tensors if self._plain(tensors) else [_in_order(tensor) for tensor in tensors]
        device = held[0].device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        wanted = list(map(torch.Tensor.data_ptr, held)), list(places), align, stream
        if wanted != self._uploaded:
            self._uploaded = None
            self._check(held, wanted[1], align)
            self._upload(wanted[0], wanted[1], device)
            self._uploaded = wanted
        return held

    def _plain(self, tensors: Sequence[torch.Tensor]) -> bool:
        if not all(map(torch.Tensor.is_contiguous, tensors)):
            return False
        return not any(tensors[at].is_conj() or tensors[at].is_neg() for at in self._lazy)

    def _check(self, tensors: Sequence[torch.Tensor], places: list[int], align: int) -> None:
        if len(places) != len(tensors):
            raise ValueError(f"{len(places)} places for {len(tensors)} tensors.")
        if any(place < 0 or place % align for place in places):
            raise ValueError(f"places must be multiples of {align}: {places}.")
        if len(devices := {tensor.device for tensor in tensors}) > 1:
            raise ValueError(f"one launch reads the tensors of one device, not of {devices}.")

    def _upload(self, addresses: list[int], places: list[int], device: torch.device) -> None:
        self.elements_end = self.bytes_end = 0
        groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for address, count, dtype, place in zip(addresses, *self._kinds, places, strict=True):
            self.elements_end = max(self.elements_end, place + count)
            self.bytes_end = max(self.bytes_end, place + count * dtype.itemsize)
            width = min(dtype.itemsize, 8)  # 16 bytes are two words, in the digest's definition too
            lanes = max(1, math.gcd(address, _ACCESS_BYTES) // width)
            if count:
                groups.setdefault((width, lanes), []).append((address, count * dtype.itemsize // width, place))
        self.launches = [_launch(width, lanes, spans, device) for (width, lanes), spans in groups.items()]


def _launch(width: int, lanes: int, spans: list[tuple[int, int, int]], device: torch.device) -> Launch:
    block = _BLOCK_ELEMENTS[width]
    chunk = _CHUNK_BYTES // width
    programs = [-(-count // chunk) for _, count, _ in spans]
    rows, first = [], 0
    for (address, count, place), own in zip(spans, programs, strict=True):
        rows.append((address, count, first, place))
        first += own
    # Made on the device, for it is a hundred times longer than its source; without `output_size` that would wait.
    owners = torch.repeat_interleave(_sent(torch.tensor(programs, dtype=torch.int32), device), output_size=first)
    shape = {"ROWS": block // lanes, "LANES": lanes, "TURNS": chunk // block, "num_warps": _WARPS}
    return Launch(_sent(torch.tensor(rows), device), owners, width, shape)


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy in device memory, queued. From pageable memory it would wait for the stream."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _check_target(flat: torch.Tensor, dtype: torch.dtype, device: torch.device, end: int) -> None:
    if flat.dtype is not dtype or flat.device != device or not flat.is_contiguous() or flat.data_ptr() % _ACCESS_BYTES:
        raise ValueError(f"the target must be contiguous, aligned {dtype} on {device}.")
    if flat.numel() < end:
        raise ValueError(f"the target has {flat.numel()} elements, the last place ends at {end}.")
