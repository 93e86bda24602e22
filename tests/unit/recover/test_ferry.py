"""Whatever is brought over is what it was; what cannot be ferried is copied all the same."""

import pytest
import torch

from everstep.recover.ferry import SMALL_BYTES, Ferry

LARGE = SMALL_BYTES // 4 + 7


def test_on_the_host_it_is_a_copy() -> None:
    source = torch.randn(LARGE)
    target = torch.empty_like(source)
    assert Ferry().bring(target, source) is target
    assert torch.equal(target, source)


@pytest.mark.gpu
@pytest.mark.parametrize("buffer_bytes", [1 << 20, 3 << 20, 64 << 20])
def test_several_buffers_full_arrive_bit_for_bit(buffer_bytes: int) -> None:
    ferry = Ferry(buffer_bytes)
    sources = [torch.randint(0, 2**31 - 1, (count,), dtype=torch.int32) for count in (LARGE, 5 * LARGE, 16 * LARGE)]
    targets = [ferry.bring(torch.empty_like(source, device="cuda"), source) for source in sources]
    kept = [source.clone() for source in sources]
    for source in sources:
        source.zero_()  # it may change at once
    assert all(torch.equal(target.cpu(), source) for target, source in zip(targets, kept, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["strided target", "strided source", "other type", "small"])
def test_what_cannot_be_ferried_is_copied(kind: str) -> None:
    source = torch.randn(1024, 1024 if kind != "small" else 1)
    target = torch.empty_like(source, device="cuda")
    if kind == "strided target":
        target = target.t()
    if kind == "strided source":
        source = source.t()
    if kind == "other type":
        target = target.double()
    Ferry().bring(target, source)
    assert torch.equal(target.cpu().float(), source)


@pytest.mark.gpu
def test_a_parameter_that_is_brought_over_counts_as_changed() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE, device="cuda"))
    before = parameter._version
    with torch.no_grad():
        Ferry().bring(parameter, torch.ones(LARGE))
    assert parameter._version > before
    assert bool((parameter == 1).all())
