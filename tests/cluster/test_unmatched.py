"""A program that is not the one that two ranks trained: refused by name, or given what both hold."""

from pathlib import Path

import pytest
import torch
from torch import nn

import everstep
from everstep.errors import Mismatch
from tests.cluster.programs import WIDTH, WORDS, Program
from tests.cluster.two import STEPS, opened


class Other(Program):
    """A head with a bias more, an embedding of another size, a buffer less, and another optimizer's state as well."""

    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        super().__init__("single", seed=5)
        self.model.head = nn.Linear(WIDTH, WORDS)
        self.model.words = nn.Embedding(WORDS + 1, WIDTH)
        del self.model.seen
        known = [[id(parameter) for parameter in group["params"]] for group in self.optimizer.param_groups]
        groups = [[p for p in self.model.parameters() if id(p) in ids] for ids in known]
        groups[0] += [self.model.head.weight, self.model.words.weight]
        groups[1] += [self.model.head.bias]
        self.optimizer = optimizer([{"params": group} for group in groups], lr=0.5)  # type: ignore[call-arg]
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)


def test_every_difference_is_named_and_nothing_is_changed(run: Path) -> None:
    program = Other()
    before = {name: tensor.clone() for name, tensor in program.model.state_dict().items()}
    with opened(run, program) as training, pytest.raises(Mismatch) as refused:
        training.resume()
    told = str(refused.value)
    assert "parameter 'head.bias': only in the program" in told
    assert f"parameter 'words.weight': ({WORDS}, {WIDTH}) F32 in the run, ({WORDS + 1}, {WIDTH}) F32" in told
    assert "buffer 'seen': only in the run" in told
    assert all(torch.equal(before[name], tensor) for name, tensor in program.model.state_dict().items())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_what_both_hold_is_restored_and_the_rest_stays(
    run: Path, original: Path, kind: type[torch.optim.Optimizer]
) -> None:
    program, there = Other(kind), everstep.restore(original).tensors
    kept = {name: program.model.get_parameter(name).detach().clone() for name in ("head.bias", "words.weight")}
    with opened(run, program, unmatched="keep") as training:
        assert training.resume() == STEPS
        assert training.ledger is not None
        status = {(item.kind, item.name): item.status for item in training.ledger}
        for name, parameter in program.model.named_parameters():
            assert torch.equal(parameter, kept[name] if name in kept else there[f"model/{name}"]), name
            assert status["parameter", name] == ("kept" if name in kept else "restored")
            held = program.optimizer.state.get(parameter, {})
            if kind is torch.optim.AdamW and name not in kept and parameter.requires_grad:
                assert torch.equal(held["exp_avg"], there[f"optimizer/main/{name}/exp_avg"])
            else:
                assert not held
        assert status["buffer", "seen"] == "missing"
        assert status["hyper", "main"] == ("restored" if kind is torch.optim.AdamW else "kept")
        if kind is torch.optim.SGD:
            assert program.optimizer.param_groups[0]["lr"] == 0.5
        program.step(STEPS)
        assert training.commit() == STEPS + 1
        assert training.wait(timeout=60) == STEPS + 1
        newest = {name: tensor.clone() for name, tensor in program.model.state_dict().items()}
    again = Other(kind)
    with opened(run, again) as training:  # strictly: the run is this program's now
        assert training.resume() == STEPS + 1
        assert all(torch.equal(newest[name], tensor) for name, tensor in again.model.state_dict().items())
