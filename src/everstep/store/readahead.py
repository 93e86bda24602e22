"""How far the kernel reads ahead of one who reads a file from front to back: 128 KiB on most machines, megabytes where
someone has set it so.

Where it reads far, it does that better than anyone can ask it to: in large requests, to large pages; so what will be
needed is read, to nowhere. Elsewhere it has to be advised. It takes no more advice at a time than it reads ahead by
itself, and drops the rest without a word. Disks that count requests, as those of clouds do, give the more the larger
they are.
"""

import os
from functools import lru_cache
from pathlib import Path

FAR_BYTES = 4 << 20
ADVICE_BYTES_MIN = 512 << 10
"""What the kernel asks a disk for at once, however little it reads ahead."""
ADVICE_BYTES_MAX = 8 << 20


@lru_cache(maxsize=64)
def ahead_bytes(device: int) -> int:
    """On a file system, by its number; 0 where the kernel does not say."""
    told = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        return int(told.read_text()) << 10
    except (OSError, ValueError):
        return 0
