"""What training does with gradients on a GPU: whatever it is, every committed step comes back bit for bit."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.capture import bus, device, workbench
from everstep.capture.freshness import Freshness
from tests.exact.test_gpu import bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]
STEPS = 14
Loop = Callable[["Program", int], None]


class Program:
    """A small model on the GPU with norms, dropout and a schedule."""

    def __init__(self, *, fused: bool = True, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)
        ).to("cuda", dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=fused)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.dtype = dtype

    def loss(self) -> torch.Tensor:
        return self.model(torch.randn(32, 64, device="cuda", dtype=self.dtype)).float().square().mean()

    def bits(self) -> dict[str, Any]:
        found = bits(self.model, self.optimizer)
        buffers = {name: b.detach().cpu().reshape(-1).view(torch.uint8) for name, b in self.model.named_buffers()}
        return found | {name: data.numpy().tobytes() for name, data in buffers.items()}


def plain(program: Program, _step: int) -> None:
    program.loss().backward()
    program.optimizer.step()
    program.optimizer.zero_grad(set_to_none=True)


def zeroed(program: Program, _step: int) -> None:
    program.loss().backward()
    program.optimizer.step()
    program.optimizer.zero_grad(set_to_none=False)


def changing_its_mind(program: Program, step: int) -> None:
    program.loss().backward()
    program.optimizer.step()
    program.optimizer.zero_grad(set_to_none=step % 5 != 4)


def accumulated(program: Program, _step: int) -> None:
    for _ in range(3):
        (program.loss() / 3).backward()
    program.optimizer.step()
    program.optimizer.zero_grad()


def clipped(program: Program, _step: int) -> None:
    program.loss().backward()
    nn.utils.clip_grad_norm_(program.model.parameters(), 0.1)
    program.optimizer.step()
    program.optimizer.zero_grad()


def autocast(program: Program, _step: int) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        loss = program.loss()
    loss.backward()
    program.optimizer.step()
    program.optimizer.zero_grad()


def edited(program: Program, step: int) -> None:
    plain(program, step)
    if step % 4 == 1:
        with torch.no_grad():
            program.model[0].weight.mul_(0.9)


LOOPS: dict[str, Loop] = {
    loop.__name__: loop for loop in (plain, zeroed, changing_its_mind, accumulated, clipped, autocast, edited)
}


def train(loop: Loop, until: int, path: Path | None, *, kill: bool = False, **options: Any) -> dict[str, Any]:
    settings = everstep.Settings(**options.pop("settings", {}))
    program = Program(**options)
    state = {"schedule": program.schedule}
    run = (
        everstep.open(path, model=program.model, optimizer=program.optimizer, state=state, settings=settings)
        if path
        else None
    )
    for step in range(run.resume() if run else 0, until):
        loop(program, step)
        program.schedule.step()
        if run:
            run.commit()
    if run and kill:
        run._recording.finish()
        sys.stdout.write(repr(sorted(program.bits().items())))
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
    if run:
        run.close()
    return program.bits()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("source", ["gradient", "layer", "state"])
def test_every_way_to_treat_gradients_is_resumed_exactly(loop: str, fused: bool, source: str, tmp_path: Path) -> None:
    settings = {"source": source, "digest_every": 3}
    for until in (1, 6, STEPS):
        found = train(LOOPS[loop], until, tmp_path / "run", fused=fused, settings=settings)
    assert found == train(LOOPS[loop], STEPS, None, fused=fused)


@pytest.mark.parametrize("gradients", ["exact", "bf16"])
@pytest.mark.parametrize("loop", ["plain", "zeroed", "clipped"])
def test_without_memory_to_spare_training_waits_and_nothing_else_changes(
    loop: str, gradients: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"gradients": gradients, "digest_every": 3}
    wanted = train(LOOPS[loop], STEPS, tmp_path / "roomy", settings=settings)
    for name, value in {"ROOMY": 1 << 40, "ENOUGH": 1 << 40, "SMALL_BYTES": 0}.items():
        monkeypatch.setattr(bus, name, value)
    monkeypatch.setattr(device, "parts", partial(workbench.parts, room=20_032))
    waits: list[int] = []
    hold_back = bus.Bus.hold_back
    monkeypatch.setattr(
        bus.Bus, "hold_back", lambda held, training, number: (waits.append(number), hold_back(held, training, number))
    )
    for until in (1, 6, STEPS):
        found = train(LOOPS[loop], until, tmp_path / "run", settings=settings)
    assert found == wanted
    assert len(set(waits)) > STEPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounded_gradients_are_what_the_optimizer_consumed(dtype: torch.dtype, tmp_path: Path) -> None:
    settings = {"gradients": "bf16", "digest_every": 3}
    for until in (1, 6, STEPS):
        found = train(plain, until, tmp_path / "run", dtype=dtype, settings=settings)
    whole = train(plain, STEPS, tmp_path / "whole", dtype=dtype, settings=settings)
    assert found == whole


@pytest.mark.parametrize("source", ["gradient", "state"])
def test_a_killed_trainer_is_resumed_from_memory_bit_for_bit(source: str, tmp_path: Path) -> None:
    code = (
        "from tests.exact.test_gpu_capture import *; from pathlib import Path\n"
        f"train(plain, 9, Path({str(tmp_path / 'run')!r}), kill=True, settings={{'source': {source!r}}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -9, done.stderr
    program = Program()
    state = {"schedule": program.schedule}
    settings = everstep.Settings(source=source)
    with everstep.open(
        tmp_path / "run", model=program.model, optimizer=program.optimizer, state=state, settings=settings
    ) as run:
        assert run.resume() == 9, done.stderr
        assert repr(sorted(program.bits().items())) == done.stdout
        assert any(item.origin.startswith("memory") for item in run.ledger)


def test_a_cuda_error_loses_at_most_the_step_in_flight(tmp_path: Path) -> None:
    code = (
        "from tests.exact.test_gpu_capture import *; from pathlib import Path\n"
        "p = Program(); run = everstep.open({path!r}, model=p.model, optimizer=p.optimizer); run.resume()\n"
        "for step in range(9):\n    plain(p, step); run.commit()\n"
        "torch.zeros(4, device='cuda')[torch.tensor([99], device='cuda')]\n"
        "try: torch.cuda.synchronize()\nexcept Exception as e: print(type(e).__name__)\n"
    ).format(path=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert "Error" in done.stdout, done.stderr
    program = Program()
    with everstep.open(tmp_path / "run", model=program.model, optimizer=program.optimizer) as run:
        assert run.resume() in (8, 9), done.stderr
        resumed = program.bits()
        again = train_without_schedule(run.health.committed)
    assert {k: v for k, v in resumed.items() if k not in ("cpu",)} == {k: v for k, v in again.items() if k != "cpu"}


def train_without_schedule(steps: int) -> dict[str, Any]:
    program = Program()
    for step in range(steps):
        plain(program, step)
    return program.bits()


def test_torch_compile_is_resumed_exactly(tmp_path: Path) -> None:
    def compiled(program: Program, _step: int) -> None:
        if not hasattr(program, "fast"):
            program.fast = torch.compile(program.model)  # type: ignore[attr-defined]
        x = torch.randn(32, 64, device="cuda")
        program.fast(x).square().mean().backward()  # type: ignore[attr-defined]
        program.optimizer.step()
        program.optimizer.zero_grad()

    for until in (1, 6, STEPS):
        found = train(compiled, until, tmp_path / "run")
    assert found == train(compiled, STEPS, None)


def test_gradients_of_a_cuda_graph_are_packed_first(tmp_path: Path) -> None:
    """Their memory is written by every replay, and nobody's version counter says so."""
    torch.manual_seed(1)
    program = Program()
    program.model[3].p = 0.0
    x = torch.randn(32, 64, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            program.model(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    program.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program.model(x).square().mean().backward()
    with everstep.open(tmp_path / "run", model=program.model, optimizer=program.optimizer) as run:
        run.resume()
        for _ in range(10):
            x.normal_()
            graph.replay()
            program.optimizer.step()
            run.commit()
        wanted = program.bits()
    again = Program()
    with everstep.open(tmp_path / "run", model=again.model, optimizer=again.optimizer) as run:
        assert run.resume() == 10
        assert again.bits() == wanted


def test_gradients_are_read_in_place_once_they_are_known_to_be_new_each_step() -> None:
    fresh, seen = Freshness(), []
    for _ in range(5):
        gradients = [torch.randn(1000, device="cuda"), torch.randn(7, device="cuda")]
        seen.append(fresh.direct(gradients))
    assert seen == [False, False, True, True, True]
    gradients[0].zero_()
    assert not fresh.untouched()
