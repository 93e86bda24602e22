"""How much the kernel takes when it is advised that bytes of a file will be read.

It takes no more at a time than it reads ahead by itself, and drops the rest without a word: 128 KiB on most machines,
megabytes where someone has set it so. Disks that count requests, as those of clouds do, give the more the larger they
are: advised half a megabyte at a time, one gave half of what it has, with its queue full.
"""

import os
from functools import lru_cache
from pathlib import Path

LEAST_BYTES = 512 << 10
"""What the kernel asks a disk for at once, however little it reads ahead."""
MOST_BYTES = 8 << 20


@lru_cache(maxsize=64)
def advice_bytes(device: int) -> int:
    """For files of a file system, by its number; the least where the kernel does not say."""
    told = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        return min(MOST_BYTES, max(LEAST_BYTES, int(told.read_text()) << 10))
    except (OSError, ValueError):
        return LEAST_BYTES
