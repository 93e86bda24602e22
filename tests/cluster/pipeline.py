"""The same program as a pipeline, each rank a stage or two of it; also with the layers of a stage cut among ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.cluster.programs import WORDS, Model, Program

KINDS = ("pp", "pp interleaved", "pp interleaved x tp")
RANKS = 2


class Stage(nn.Module):
    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.reshape(-1, WORDS), target.reshape(-1))


class Pipeline(Program):
    """Interleaved, two ranks have four stages, every other one each; else two."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        assert kind in KINDS
        super().__init__("single", seed)
        whole = self.model
        assert isinstance(whole, Model)
        tp = dist.get_world_size() // RANKS
        mesh = init_device_mesh("cpu", (RANKS, tp), mesh_dim_names=("pp", "tp"))
        self._rank = mesh["pp"].get_local_rank()
        parts: list[nn.Module] = [whole.words, whole.layers[0], whole.layers[1], whole.head]
        stages = [[part] for part in parts] if "interleaved" in kind else [parts[:2], parts[2:]]
        own = range(self._rank, len(stages), RANKS)
        held = {id(p) for at in own for part in stages[at] for p in part.parameters()}
        groups = [[id(p) for p in group["params"] if id(p) in held] for group in self.optimizer.param_groups]
        for name, holder in (("words", whole), ("0", whole.layers), ("1", whole.layers), ("head", whole)):
            if not any(id(p) in held for p in getattr(holder, name).parameters()):
                setattr(holder, name, nn.Identity())  # others hold it; names stay what they are in the whole
        named = {id(p): name for name, p in whole.named_parameters()}
        self._cut(whole, mesh["tp"])
        now = dict(whole.named_parameters())
        self.optimizer = torch.optim.AdamW([
            {**group, "params": [now[named[known]] for known in ours]}
            for group, ours in zip(self.optimizer.param_groups, groups, strict=True)
        ])  # fmt: skip
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        made = [
            PipelineStage(Stage(stages[at]), at, len(stages), torch.device("cpu"), group=mesh["pp"].get_group())
            for at in own
        ]
        if "interleaved" in kind:
            self._pipe = ScheduleInterleaved1F1B(made, n_microbatches=2, loss_fn=loss_of)
        else:
            self._pipe = Schedule1F1B(made[0], n_microbatches=2, loss_fn=loss_of)  # type: ignore[assignment]

    def _cut(self, whole: Model, mesh: DeviceMesh) -> None:
        for layer in whole.layers if mesh.size() > 1 else ():
            if not isinstance(layer, nn.Identity):
                parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    def step(self, at: int) -> float:
        tokens = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(at))
        losses: list[torch.Tensor] = []
        if self._rank == 0:
            self._pipe.step(tokens)
        else:
            self._pipe.step(target=tokens, losses=losses)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        found: list[float | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, float(torch.stack(losses).detach().mean()) if losses else None)
        return next(loss for loss in found if loss is not None)

    def whole(self) -> dict[str, torch.Tensor]:
        found: list[dict[str, torch.Tensor] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, super().whole())
        return {name: value for held in found if held for name, value in held.items()}
