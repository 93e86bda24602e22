"""No sample is skipped or repeated, wherever a run was killed and resumed."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import everstep
from everstep.company import Alone
from everstep.errors import Misuse

SAMPLES = 11
PASSES = 3


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def ours(**options: Any) -> everstep.Loader:
    return everstep.Loader(Numbers(), 3, shuffle=True, seed=5, **options)


def everything(loader: Any, passes: int) -> list[list[int]]:
    return [batch.tolist() for _ in range(passes) for batch in loader]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_reload_at_any_batch_the_rest_is_what_it_would_have_been(workers: int, drop_last: bool) -> None:
    whole = everything(ours(drop_last=drop_last), PASSES)
    length = 3 if drop_last else 4
    places = range(len(whole)) if workers == 0 else (0, 1, length - 1, length, length + 2, len(whole) - 1)
    for place in places:
        first = ours(drop_last=drop_last, num_workers=workers)
        taken = [batch.tolist() for batch in itertools.islice(first.endless(), place)]
        second = ours(drop_last=drop_last, num_workers=workers)
        second.load_state_dict(first.state_dict())
        rest = [batch.tolist() for batch in itertools.islice(second.endless(), len(whole) - place)]
        assert taken + rest == whole, place


def test_a_pass_holds_every_sample_once_and_another_pass_another_order() -> None:
    loader = ours()
    passes = [[number for batch in loader for number in batch.tolist()] for _ in range(PASSES)]
    assert all(sorted(one) == list(range(SAMPLES)) for one in passes)
    assert len({tuple(one) for one in passes}) == PASSES


def test_fetching_ahead_does_not_move_the_place() -> None:
    loader = ours(num_workers=2, prefetch_factor=4)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["samples"] == 3


def test_the_global_generator_is_not_touched() -> None:
    before = torch.get_rng_state()
    everything(ours(), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_place_in_another_order_is_refused() -> None:
    with pytest.raises(Misuse, match="another order"):
        ours().load_state_dict(everstep.Loader(Numbers(), 3, shuffle=True, seed=6).state_dict())


def together(world: int, batch_size: int, **options: Any) -> list[everstep.Loader]:
    return [
        everstep.Loader(Numbers(), batch_size, shuffle=True, seed=5, rank=rank, world=world, **options)
        for rank in range(world)
    ]


def steps(loaders: list[everstep.Loader], count: int) -> list[list[int]]:
    """What all ranks together read in each of so many steps."""
    batches = [loader.endless() for loader in loaders]
    return [[number for batch in batches for number in next(batch).tolist()] for _ in range(count)]


@pytest.mark.parametrize("before", [(1, 3), (2, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize("after", [(1, 2), (2, 1), (3, 2), (5, 1)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_sample_is_read_once_whatever_the_number_of_ranks_and_the_batch_size(
    before: tuple[int, int], after: tuple[int, int], place: int
) -> None:
    order = [number for batch in everything(ours(), 1) for number in batch]
    first = together(*before)
    place = min(place, len(first[0]))
    seen = [number for step in steps(first, place) for number in step]
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states), "one place for all"
    second = together(*after)
    for loader in second:
        loader.load_state_dict(states[0])
    rest = [[batch.tolist() for batch in loader] for loader in second]
    assert len({len(batches) for batches in rest}) == 1, "as many steps on every rank"
    seen += [number for step in zip(*rest, strict=True) for batch in step for number in batch]
    assert seen == order[: len(seen)]
    assert len(order) - len(seen) < after[0]


def test_the_same_global_batch_on_other_ranks_is_the_same_samples() -> None:
    assert steps(together(4, 1), 2) == steps(together(2, 2), 2) == steps(together(1, 4), 2)


def test_a_rank_that_is_none_is_refused() -> None:
    for place in ({"rank": 2, "world": 2}, {"rank": 0}, {"world": 2}, {"rank": -1, "world": 2}):
        with pytest.raises(Misuse, match="cannot be"):
            everstep.Loader(Numbers(), 3, **place)


def test_ranks_that_do_not_say_what_they_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.integrations.loader.company", lambda: Alone(1, 4))
    with pytest.raises(Misuse, match="4 ranks train together"):
        everstep.Loader(Numbers(), 3)


@pytest.mark.parametrize("option", ["sampler", "batch_sampler", "generator"])
def test_the_order_is_ours_to_decide(option: str) -> None:
    with pytest.raises(Misuse, match=option):
        ours(**{option: None})


def test_a_loader_without_batches_does_not_spin() -> None:
    with pytest.raises(Misuse, match="no batches"):
        next(everstep.Loader(Numbers(), 99, drop_last=True).endless())


def theirs(workers: int) -> Any:
    return StatefulDataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=workers)


def train(path: Path, make: Callable[[], Any], steps: int, seed: int = 1) -> list[list[int]]:
    """Steps of a real run with the loader in `state=`, over as many passes as it takes; then the process is gone."""
    torch.manual_seed(seed)
    loader = make()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[list[int]] = []
    with everstep.open(path, model=model, optimizer=optimizer, state={"data": loader}) as run:
        run.resume()
        while len(seen) < steps:
            for batch in loader:
                seen.append(batch.tolist())
                optimizer.zero_grad()
                model(batch[:, None].float()).sum().backward()
                optimizer.step()
                run.commit()
                if len(seen) == steps:
                    break
    if hasattr(held := getattr(loader, "_iterator", None), "_shutdown_workers"):
        held._shutdown_workers()  # left to the garbage collector, torchdata waits 10 s for workers it cannot reach
    return seen


LOADERS: dict[str, Callable[[], Any]] = {
    "ours": ours,
    "ours, 2 workers": lambda: ours(num_workers=2),
    "torchdata": lambda: theirs(0),
    "torchdata, 2 workers": lambda: theirs(2),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("place", [1, 2, 4, 5])
def test_a_run_resumed_at_any_batch_sees_the_samples_of_one_that_never_stopped(
    tmp_path: Path, name: str, place: int
) -> None:
    whole = train(tmp_path / "whole", LOADERS[name], 8)
    first = train(tmp_path / "run", LOADERS[name], place)
    assert first + train(tmp_path / "run", LOADERS[name], 8 - place, seed=99) == whole
