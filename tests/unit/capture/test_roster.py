"""Everything that is trained has one name; what has several is said to be tied; what has none is refused."""

import pytest
import torch
from torch import nn

from everstep.capture.roster import call_the_roll
from everstep.errors import Misuse, Unsupported


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2)
        self.two = self.one


def test_a_parameter_has_the_name_its_module_gives_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    roster = call_the_roll(model, sgd(model))
    assert list(roster.parameters) == [name for name, _ in model.named_parameters()]
    assert list(roster.buffers()) == [name for name, _ in model.named_buffers()]


@pytest.mark.parametrize(
    "model, aliases",
    [(Tied(), {"head.weight": "embed.weight"}), (Shared(), {"two.weight": "one.weight", "two.bias": "one.bias"})],
)
def test_a_second_name_of_a_parameter_is_an_alias_of_the_first(model: nn.Module, aliases: dict[str, str]) -> None:
    roster = call_the_roll(model, sgd(model))
    assert roster.aliases == aliases
    assert len(roster.parameters) == len(list(model.parameters()))


def test_a_frozen_parameter_is_on_the_roster_without_an_optimizer() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    roster = call_the_roll(model, torch.optim.SGD([model.weight], lr=0.1))
    assert set(roster.parameters) == {"weight", "bias"}
    assert roster.groups() == [("main", [["weight"]])]


def test_several_models_and_optimizers_keep_their_names_apart() -> None:
    parts = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 2)}
    roster = call_the_roll(parts, {"one": sgd(parts["g"]), "two": sgd(parts["d"])})
    assert set(roster.parameters) == {"g.weight", "g.bias", "d.weight", "d.bias"}
    assert roster.groups() == [("one", [["g.weight", "g.bias"]]), ("two", [["d.weight", "d.bias"]])]
    assert list(call_the_roll(parts, [sgd(parts["g"]), sgd(parts["d"])]).optimizers) == ["0", "1"]


def test_a_parameter_that_the_model_does_not_have_is_refused_with_its_place() -> None:
    model, stray = nn.Linear(2, 2), nn.Parameter(torch.ones(7))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [stray]}], lr=0.1)
    with pytest.raises(Unsupported, match=r"group 1.*\(7,\)"):
        call_the_roll(model, optimizer)


def test_names_do_not_depend_on_what_is_wrapped_around_a_model() -> None:
    model = nn.Linear(2, 2)
    wrapped = nn.DataParallel(model)
    assert list(call_the_roll(wrapped, sgd(model)).parameters) == ["weight", "bias"]


def test_a_module_without_a_shape_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    optimizer = sgd(model[0])
    with pytest.raises(Misuse, match="forward"):
        call_the_roll(model, optimizer)


@pytest.mark.parametrize(
    "model, optimizer", [(3, None), ({"a": 3}, None), (nn.Linear(1, 1), 5), (nn.Linear(1, 1), [5])]
)
def test_what_is_no_module_or_optimizer_is_refused(model: object, optimizer: object) -> None:
    with pytest.raises((Misuse, TypeError, AttributeError)):
        call_the_roll(model, optimizer)  # type: ignore[arg-type]


def test_an_optimizer_s_name_has_no_slash() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(Misuse, match="/"):
        call_the_roll(model, {"a/b": sgd(model)})


def test_derived_buffers_are_those_the_model_does_not_save() -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("kept", torch.ones(1))
    model.register_buffer("made", torch.ones(1), persistent=False)
    assert call_the_roll(model, sgd(model)).derived() == ("made",)


def test_the_shape_changes_when_a_group_does() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    optimizer = sgd(model[0])
    roster = call_the_roll(model, optimizer)
    before = roster.shape()
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert roster.shape() != before


class Around(torch.optim.SGD):
    """An optimizer that lets another one step, as sharpness-aware ones do."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.base = torch.optim.Adam(parameters)


def test_an_optimizer_that_hides_the_state_of_another_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    outer = Around(list(model.parameters()))
    with pytest.raises(Unsupported, match=r"steps by another one, \.base \(Adam\), whose state would not be recorded"):
        call_the_roll(model, outer)
    assert list(call_the_roll(model, {"outer": outer, "inner": outer.base}).optimizers) == ["outer", "inner"]
