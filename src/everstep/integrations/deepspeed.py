"""A DeepSpeed engine under ZeRO, stages 1 to 3: `open(url, engine)` instead of `everstep.open(...)`.

    run = everstep.integrations.deepspeed.open("runs/gpt", engine)
    for step in range(run.resume(), steps):
        engine.backward(engine(batch))
        engine.step()
        run.commit()

What is recorded are the float32 tensors that ZeRO steps, by the names of the model's parameters: so the run goes on
under another stage, another number of ranks, FSDP, or in plain PyTorch. DeepSpeed is not imported here; of an engine
only what stands below is asked.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from everstep.api import Run
from everstep.api import open as open_run
from everstep.capture.buckets import Bucket, Buckets
from everstep.capture.context import Stateful
from everstep.capture.roster import named_parameters
from everstep.errors import Unsupported
from everstep.layout import view as views
from everstep.settings import Settings
from everstep.types import Local

COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


def open(  # noqa: A001 as everstep.open
    url: str | os.PathLike[str], engine: Any, *, state: Mapping[str, Stateful] | None = None,
    settings: Settings | None = None,
) -> Run:  # fmt: skip
    """Open a run for an engine. Its counters, its loss scale and its scheduler are restored with it; `state` is the
    rest, as in `everstep.open`."""
    kept: dict[str, Stateful] = {"engine": Counters(engine)}
    if (schedule := getattr(engine, "lr_scheduler", None)) is not None:
        kept["scheduler"] = schedule
    return open_run(
        url, model=engine.module, optimizer=seen(engine), state={**kept, **(state or {})}, settings=settings
    )


def seen(engine: Any) -> torch.optim.Optimizer:
    """The engine's optimizer, as one that steps the model's parameters; without ZeRO it does."""
    zero = engine.optimizer
    if isinstance(zero, torch.optim.Optimizer):
        return zero
    if getattr(engine, "mp_world_size", 1) > 1:
        raise Unsupported(
            "ZeRO over model parallelism: an engine does not say which parts its tensors are. Describe them with "
            "everstep.Buckets and a spec (docs/PARALLEL.md)."
        )
    named = named_parameters(engine.module)
    names = {id(parameter): name for name, parameter in named.items()}
    experts = [name for name, parameter in named.items() if not getattr(parameter, "allreduce", True)]
    if experts:
        raise Unsupported(f"{experts[0]} belongs to an expert, which not all ranks hold; that is not supported here.")
    if hasattr(zero, "single_partition_of_fp32_groups"):
        return Buckets(zero.optimizer, _of_groups(zero, names), arrived=_groups_arrived(zero))
    if hasattr(zero, "fp32_partitioned_groups_flat"):
        if getattr(zero, "swap_optimizer", False) or getattr(zero, "params_in_nvme_and_cpu", False):
            raise Unsupported("ZeRO-Infinity keeps optimizer state in files of its own; that is not supported.")
        frozen = list(_frozen(engine.module, names))
        return Buckets(zero.optimizer, _of_parameters(zero, names), fixed=frozen, arrived=_parameters_arrived(zero))
    raise Unsupported(
        f"a {type(zero).__name__} is not one of ZeRO's (stages 1, 2, 3), nor torch's. Stage 1 with bf16 and "
        "'grad_accum_dtype': 'fp32' uses another: leave that out, or choose stage 2."
    )


def _of_groups(zero: Any, names: Mapping[int, str]) -> list[list[Bucket]]:
    """Stages 1 and 2: of each param group the parameters end to end, of which this rank has a stretch."""
    found = []
    for flat, parameters in zip(zero.single_partition_of_fp32_groups, zero.bit16_groups, strict=True):
        held = {}
        for parameter in parameters:
            link = parameter._hp_mapping  # noqa: SLF001 which elements of it lie where in the stretch
            within = link.lp_fragment_address if link is not None else None
            first, count = (within.start, within.numel) if within is not None else (0, 0)
            base = link.hp_fragment_address.start if link is not None else 0
            held[names[id(parameter)]] = _lying(names[id(parameter)], parameter.shape, flat, first, count, base)
        found.append([Bucket(flat, held)])
    return found


def _of_parameters(zero: Any, names: Mapping[int, str]) -> list[list[Bucket]]:
    """Stage 3: each parameter is cut by itself, and this rank's cuts lie end to end, some parameters in each bucket."""
    found: list[list[Bucket]] = [[] for _ in zero.optimizer.param_groups]
    for at, (flat, parameters) in enumerate(zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True)):
        held, base = {}, 0
        for parameter in parameters:
            held[names[id(parameter)]] = _cut(names[id(parameter)], parameter, flat, base)
            base += parameter.partition_numel()
        found[zero.sub_group_to_group_id[at]].append(Bucket(flat, held))
    return found


def _frozen(module: torch.nn.Module, names: Mapping[int, str]) -> Iterator[Bucket]:
    """Stage 3 cuts what is not trained as well."""
    for parameter in module.parameters():
        if not parameter.requires_grad and (flat := getattr(parameter, "ds_tensor", None)) is not None:
            name = names[id(parameter)]
            yield Bucket(flat, {name: _cut(name, parameter, flat, 0)})


def _cut(name: str, parameter: Any, flat: torch.Tensor, base: int) -> Local:
    share, rank = parameter.partition_numel(), torch.distributed.get_rank(parameter.ds_process_group)
    first = min(rank * share, parameter.ds_numel)
    return _lying(name, parameter.ds_shape, flat, first, min(share, parameter.ds_numel - first), base)


def _lying(name: str, shape: Any, flat: torch.Tensor, first: int, count: int, base: int) -> Local:
    """So many elements of a tensor from one on, which lie at `base` of a bucket."""
    whole = tuple(int(extent) for extent in shape)
    pieces = views.full(whole).lower_flat(first, first + count, base) if count else []
    return Local(name, whole, tuple(flat.shape), tuple(pieces))


def _groups_arrived(zero: Any) -> Callable[[], None]:
    def arrived() -> None:
        zero.update_lp_params()
        if zero.optimizer.state:  # its accessors look at the state that it had
            zero._hp_optimizer_states_linked = False  # noqa: SLF001
            zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001

    return arrived


def _parameters_arrived(zero: Any) -> Callable[[], None]:
    def arrived() -> None:
        for at in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(at)  # noqa: SLF001 as after each of its own steps
        if zero.persistent_parameters:  # small ones, of which every rank keeps all
            zero.persistent_parameters[0].partition(zero.persistent_parameters, has_been_updated=False)
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    return arrived


class Counters:
    """What an engine counts, and its loss scale."""

    skips = True
    """An engine leaves a step out when gradients overflow: then a commit without an update is right."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        counts = {name: int(getattr(self._engine, name)) for name in COUNTS}
        return {"counts": counts, "loss_scale": self._scale()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, count in state["counts"].items():
            if name in COUNTS:
                setattr(self._engine, name, count)
        known = self._scale()
        for name, value in state["loss_scale"].items():
            if name in known:
                setattr(self._engine.optimizer.loss_scaler, name, value)

    def _scale(self) -> dict[str, int | float | bool]:
        scaler = getattr(self._engine.optimizer, "loss_scaler", None)
        return {} if scaler is None else {k: v for k, v in vars(scaler).items() if isinstance(v, int | float)}
