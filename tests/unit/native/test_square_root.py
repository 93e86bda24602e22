"""Laws of `square_root`: the address it gives computes torch.sqrt, bit for bit, at any length and alignment."""

from __future__ import annotations

import ctypes

import pytest
import torch

from everstep.native import square_root
from tests.unit.native.twins import bits_differing

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@dtypes
@pytest.mark.parametrize("length", [1, 3, 16, 255, 256, 4096, 300_001])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_address_computes_what_torch_sqrt_does(dtype: torch.dtype, length: int, offset: int) -> None:
    address = square_root.address(dtype)
    if address == 0:
        pytest.skip("torch.sqrt is correctly rounded here")
    source = torch.rand(length + offset, dtype=dtype)[offset:]
    target = torch.empty_like(source)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    function(length, source.data_ptr(), target.data_ptr(), square_root._VML_MODE)
    assert bits_differing([torch.sqrt(source)], [target]) == 0


@dtypes
def test_an_unknown_square_root_is_refused(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(square_root, "_rounded", lambda samples: samples)
    monkeypatch.setattr(square_root, "_vector_library", lambda _: None)
    with pytest.raises(square_root.UnknownSquareRoot, match="neither"):
        square_root.address.__wrapped__(dtype)


@dtypes
def test_the_fingerprint_is_a_constant_of_the_machine(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert square_root.fingerprint(dtype) == square_root.fingerprint(dtype)
    assert torch.equal(before, torch.get_rng_state())
