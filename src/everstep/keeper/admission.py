"""Whether records go to the disk: as long as they do not come faster than it writes.

A large record that is being written holds its place in the ring for many steps, so this is decided before, not when
the ring is full. Until the first few records show how fast they come, they wait.
"""

from collections import deque
from typing import Literal

Verdict = Literal["write", "wait", "spare"]

UNKNOWN_DISK_BYTES_PER_S = 400e6
"""What a disk is taken to write before one has been seen to."""
SHARE = 0.7
"""Records may take this part of what the disk can write."""
RECORDS = 8
"""Over so many records the rate is taken; half of them are enough to judge."""
LARGE_BYTES = 64 << 20
"""Less than this in so many records, and the disk's cache takes it in passing."""


class Admission:
    """Told of every record as it arrives, with the time in seconds. Pure but for what it was told."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=RECORDS)

    def arrived(self, nbytes: int, now: float) -> None:
        self._arrivals.append((now, nbytes))

    def verdict(self, disk_bytes_per_s: float, now: float) -> Verdict:
        """What is to become of the records that have arrived: "spare" the disk if it cannot take such records."""
        sizes = [nbytes for _, nbytes in self._arrivals]
        if not sizes or RECORDS * max(sizes) < LARGE_BYTES:
            return "write"
        rate = SHARE * (disk_bytes_per_s or UNKNOWN_DISK_BYTES_PER_S)
        first, last = self._arrivals[0][0], self._arrivals[-1][0]
        if sum(sizes) <= rate * (now - first):
            return "write"  # by now the disk would have written all of them
        if len(sizes) < RECORDS // 2:
            return "wait"
        return "write" if sum(sizes[1:]) <= rate * (last - first) else "spare"

    def clear(self) -> None:
        self._arrivals.clear()
