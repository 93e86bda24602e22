"""The same program as an interleaved pipeline: two ranks, four stages, each rank every other one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from tests.cluster.programs import WORDS, Model, Program

STAGES = 4


class Stage(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.reshape(-1, WORDS), target.reshape(-1))


class Pipeline(Program):
    def __init__(self, kind: str, seed: int = 0) -> None:
        assert kind == "pp"
        super().__init__("single", seed)
        whole = self.model
        assert isinstance(whole, Model)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        parts = [whole.words, whole.layers[0], whole.layers[1], whole.head]
        own = range(rank, STAGES, ranks)
        stages = [PipelineStage(Stage(parts[at]), at, STAGES, torch.device("cpu")) for at in own]
        held = {id(p) for at in own for p in parts[at].parameters()}
        for name, holder in (("words", whole), ("0", whole.layers), ("1", whole.layers), ("head", whole)):
            if not any(id(p) in held for p in getattr(holder, name).parameters()):
                setattr(holder, name, nn.Identity())  # others hold it; names stay what they are in the whole
        groups = [
            {**group, "params": [p for p in group["params"] if id(p) in held]} for group in self.optimizer.param_groups
        ]
        self.optimizer = torch.optim.AdamW(groups)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self._pipe = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=loss_of)

    def step(self, at: int) -> float:
        tokens = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(at))
        if dist.get_rank() == 0:
            self._pipe.step(tokens)
        else:
            self._pipe.step(target=tokens)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return 0.0

    def whole(self) -> dict[str, torch.Tensor]:
        found: list[dict[str, torch.Tensor] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, super().whole())
        return {name: value for held in found if held for name, value in held.items()}
