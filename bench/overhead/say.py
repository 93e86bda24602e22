"""Progress, on the error stream, with the time since the start."""

import sys
import time

_BEGAN = time.perf_counter()


def say(text: str) -> None:
    sys.stderr.write(f"{time.perf_counter() - _BEGAN:7.1f} s  {text}\n")
    sys.stderr.flush()
