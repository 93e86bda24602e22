"""The same laws with parameters on a GPU: capture, digest, resume, generators."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.capture.digests import digest

pytestmark = pytest.mark.gpu


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    found = {name: p.detach().cpu() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        found |= {f"{name}/{key}": value.cpu() for key, value in optimizer.state[p].items()}
    found["cuda"], found["cpu"] = torch.cuda.get_rng_state(), torch.get_rng_state()
    flat = {name: (value.dtype, value.contiguous().reshape(-1).view(torch.uint8)) for name, value in found.items()}
    return {name: (dtype, value.numpy().tobytes()) for name, (dtype, value) in flat.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"kind": torch.optim.AdamW, "fused": True},
        {"kind": torch.optim.AdamW, "foreach": True},
        {"kind": torch.optim.AdamW, "foreach": False},
        {"kind": torch.optim.AdamW, "capturable": True},
        {"kind": torch.optim.SGD, "momentum": 0.9},
        {"kind": torch.optim.RMSprop},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
@pytest.mark.parametrize("scaled", [False, True])
def test_a_resumed_run_on_a_gpu_equals_an_uninterrupted_one(
    options: dict[str, Any], scaled: bool, tmp_path: Path
) -> None:
    def train(until: int, path: Path | None) -> dict[str, Any]:
        torch.manual_seed(1)
        settings = dict(options)
        model = nn.Sequential(nn.Linear(33, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 5)).cuda()
        optimizer = settings.pop("kind")(model.parameters(), lr=1e-2, **settings)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=scaled)
        run = everstep.open(path, model=model, optimizer=optimizer, state={"scaler": scaler}) if path else None
        for at in range(run.resume() if run else 0, until):
            with torch.autocast("cuda", torch.float16, enabled=scaled):
                loss = model(torch.randn(16, 33, device="cuda")).float().square().mean()
            scaler.scale(loss * (float("inf") if scaled and at == 3 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if run:
                run.commit()
        if run:
            run.close()
        return bits(model, optimizer)

    for until in (2, 4, 5, 9):
        found = train(until, tmp_path / "run")
    assert found == train(9, None)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool, torch.complex64]
)
def test_the_digest_is_the_same_on_both_devices(dtype: torch.dtype) -> None:
    tensor = (torch.randn(100_003) * 10).to(dtype)
    assert digest([tensor]) == digest([tensor.cuda()])


def test_a_run_trained_on_a_gpu_is_restored_on_it_or_refused_elsewhere(tmp_path: Path) -> None:
    """The CPU rounds AdamW otherwise: a restore without the GPU's program must prove itself or say no."""
    torch.manual_seed(2)
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    with everstep.open(tmp_path / "run", model=model, optimizer=optimizer) as run:
        run.resume()
        for _ in range(5):
            model(torch.randn(8, 64, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.commit()
    assert everstep.restore(tmp_path / "run", 0).step == 0
    try:
        restored = everstep.restore(tmp_path / "run", 5)
    except everstep.errors.ReplayDiffers:
        return
    assert torch.equal(restored.tensors["model/weight"], model.weight.detach().cpu())
