"""What of the bus can be seen without a GPU."""

import pytest
import torch

from everstep import native


def test_copies_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="equally many"):
        native.Copies([0, 1], [0], [1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA driver here")
def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="no CUDA driver"):
        native.Bus(0, 0)
