from collections.abc import Iterator

import pytest
import torch

from everstep.native import _kernels


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """torch's fused kernels open a parallel region per tensor, however small: minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["generic", "avx2", "avx512"])
def kernel_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _kernels.capability()
    try:
        _kernels.use(request.param)
    except ValueError:
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    _kernels.use(before)
