from collections.abc import Iterator

import pytest

from everstep.native import _kernels


@pytest.fixture(params=["generic", "avx2", "avx512"])
def kernel_set(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _kernels.capability()
    try:
        _kernels.use(request.param)
    except ValueError:
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    _kernels.use(before)
