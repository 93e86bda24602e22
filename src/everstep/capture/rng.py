"""The states of every random generator training may use."""

import hashlib
import random
import struct
import sys
from typing import Any

import torch

from everstep.errors import Damaged

PYTHON = struct.Struct("<625I")

States = dict[str, Any]
"""Per generator its state as its library gives it; `packed` makes it a value that can be recorded."""


def take() -> States:
    """All generators as they are now. numpy's only if it is loaded, a CUDA device's only if CUDA is in use."""
    states: States = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state(legacy=False)
    if cuda_in_use():
        for device in range(torch.cuda.device_count()):
            states[f"cuda:{device}"] = torch.cuda.get_rng_state(device)
    return states


def cuda_in_use() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def packed(name: str, state: Any) -> Any:
    """A state as a value that can be recorded: Python's 625 words become bytes."""
    return [state[0], PYTHON.pack(*state[1]), state[2]] if name == "python" else state


def put(states: States) -> list[str]:
    """Set the generators from packed states; returns the names of those this machine does not have."""
    missing = []
    for name, state in states.items():
        if name == "python":
            random.setstate((state[0], PYTHON.unpack(state[1]), state[2]))
        elif name == "torch":
            torch.set_rng_state(state)
        elif name == "numpy":
            import numpy

            words = state["state"]
            if state["bit_generator"] == "MT19937" and not (words["key"].shape == (624,) and 0 <= words["pos"] <= 624):
                raise Damaged("the recorded state of numpy's generator cannot be right.")  # numpy would read beyond it
            numpy.random.set_state(state)
        elif name.startswith("cuda:") and torch.cuda.is_available() and int(name[5:]) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(name[5:]))
        else:
            missing.append(name)
    return missing


def derive(run: str, step: int, rank: int) -> None:
    """Seed every generator for a rank that nobody was before: its own numbers, and the same whenever this is done."""
    seed = hashlib.sha256(f"{run}/{step}/{rank}".encode()).digest()
    random.seed(seed)
    torch.manual_seed(int.from_bytes(seed[:8], "little") >> 1)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(int.from_bytes(seed[8:12], "little"))


def same(name: str, one: Any, two: Any) -> bool:
    """Whether a generator did not move between two states."""
    if one is None or two is None:
        return one is two
    if name == "python":
        return bool(one == two)
    if name != "numpy":
        return torch.equal(one, two)
    left, right = one["state"], two["state"]
    if one["bit_generator"] != "MT19937" or two["bit_generator"] != "MT19937":
        return repr(one) == repr(two)  # someone replaced numpy's generator: all others have small states
    moved = left["pos"] != right["pos"] or (one["has_gauss"], one["gauss"]) != (two["has_gauss"], two["gauss"])
    return not moved and bool((left["key"] == right["key"]).all())
