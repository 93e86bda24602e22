"""What of the bus can be seen without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from everstep import native

DRIVER = Path(__file__).parent / "driver"


def test_copies_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="equally many"):
        native.Copies([0, 1], [0], [1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA driver here")
def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no CUDA driver"):
        native.Bus(0, 0, 0, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="another driver would be found before it")
@pytest.mark.parametrize("kind", ["batches", "singly"])
def test_what_is_asked_of_a_driver(tmp_path: Path, kind: str) -> None:
    """Portions, their order, all at once in a hurry, and no word of anything after a failure."""
    library = tmp_path / "libcuda.so.1"
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library]
    command += ["-DBATCHES"] if kind == "batches" else []
    subprocess.run([*command, DRIVER / "libcuda.cpp"], check=True)
    done = subprocess.run(
        [sys.executable, DRIVER / "asked.py", library, kind], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "as it should be\n", done.stderr
