"""The states of every random generator training may use, as plain values."""

import random
import struct
import sys
from typing import Any

import torch

from everstep.errors import Damaged

PYTHON = struct.Struct("<625I")


def take() -> dict[str, Any]:
    """All generators as they are now. numpy's only if it is loaded, a CUDA device's only if CUDA is in use."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": [version, PYTHON.pack(*words), gauss],
        "torch": torch.get_rng_state(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state(legacy=False)
    if cuda_in_use():
        for device in range(torch.cuda.device_count()):
            states[f"cuda:{device}"] = torch.cuda.get_rng_state(device)
    return states


def cuda_in_use() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def put(states: dict[str, Any]) -> list[str]:
    """Set the generators; returns the names of those this machine does not have."""
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


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether no generator moved."""
    if left.keys() != right.keys() or left["python"] != right["python"]:
        return False
    if any(not torch.equal(left[name], right[name]) for name in left if name not in ("python", "numpy")):
        return False
    if "numpy" not in left:
        return True
    one, two = left["numpy"], right["numpy"]
    return one["state"]["pos"] == two["state"]["pos"] and bool((one["state"]["key"] == two["state"]["key"]).all())
