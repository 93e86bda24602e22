"""Gradients wait to be applied together, but not for long: whoever replays a log has a record in memory for each."""

import weakref

import pytest
import torch

from everstep.shadow import rules
from everstep.shadow.rules import Rules

STEPS = 7


def trained(gradients: list[torch.Tensor], *, natively: bool) -> tuple[torch.Tensor, int]:
    """The parameter after all of them, and how many were in memory at most, beside the one at hand."""
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, gradients[0].numel()))
    optimizer = torch.optim.AdamW([parameter], lr=0.01)
    ours = Rules({"p": parameter}, {"main": optimizer}, 1)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    for gradient in gradients:
        if natively:
            held = gradient.clone()
            assert ours.take("main", {"p": held})
            alive.append(weakref.ref(held))
            del held
            most = max(most, sum(one() is not None for one in alive))
        else:
            parameter.grad = gradient
            optimizer.step()
    ours.flush()
    return parameter.detach(), most


@pytest.mark.parametrize(("nbytes", "most"), [(1 << 30, rules.BLOCK - 1), (1200, 1), (400, 0)])
def test_large_gradients_wait_for_fewer_others(nbytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "WAITING_BYTES", nbytes)
    source = torch.Generator().manual_seed(3)
    gradients = [torch.randn(200, generator=source) for _ in range(STEPS)]  # 800 bytes each
    found, waiting = trained(gradients, natively=True)
    assert torch.equal(found, trained(gradients, natively=False)[0])
    assert waiting == most
