"""Names on their way into a run: renamed as a whole, unstacked, tied, told apart; a rule without effect is an error."""

from pathlib import Path

import pytest
import torch

import everstep
from everstep.errors import Misuse, Unsupported
from everstep.foreign.arrive import rules
from everstep.foreign.arrive.arrive import arrive
from everstep.foreign.arrive.wishes import wishes
from tests.unit.foreign import fixtures


def imported(path: Path, tensors: dict[str, torch.Tensor], **said: object) -> dict[str, torch.Tensor]:
    torch.save({"model": tensors}, path / "c.pt")
    arrive(str(path / "c.pt"), str(path / "run"), wishes(**said))  # type: ignore[arg-type]
    return everstep.restore(path / "run").tensors


def made(texts: list[str], names: list[str]) -> dict[str, str]:
    return rules.renamed(names, [rules.rename("--rename", text) for text in texts])


def test_a_prefix_goes() -> None:
    assert made([r"module\.(.*)=\1"], ["module.a", "module.b.c"]) == {"module.a": "a", "module.b.c": "b.c"}


def test_rules_apply_in_turn() -> None:
    assert made([r"_orig_mod\.(.*)=\1", r"module\.(.*)=\1"], ["_orig_mod.module.a"]) == {"_orig_mod.module.a": "a"}


def test_a_pattern_matches_whole_names_only() -> None:
    assert made([r"a=b"], ["a", "a.a"]) == {"a": "b", "a.a": "a.a"}


def test_a_pattern_may_hold_an_equals_sign() -> None:
    assert made([r"(?=a)(.*)=x.\1"], ["a", "b"]) == {"a": "x.a", "b": "b"}


@pytest.mark.parametrize(("text", "said"), [
    (r"module\.(.*)=\1", "no name matches as a whole"),
    (r".*=same", "both into 'same'"),
    (r"(a)=\2", "cannot be filled in"),
    (r"a=", "into nothing"),
    (r"a", "is not PATTERN=TEMPLATE"),
    (r"(=x", "is no regular expression"),
])  # fmt: skip
def test_a_rule_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        made([text], ["a", "b"])


def test_renaming_reaches_model_and_optimizer_alike(tmp_path: Path) -> None:
    arrive(fixtures.path("zero1"), str(tmp_path / "run"), wishes(renames=(r"(a|b|bn|frozen)\.(.*)=net.\1.\2",)))
    found = everstep.restore(tmp_path / "run")
    for name, tensor in fixtures.reference("zero1").items():
        kind, _, rest = name.partition("/")
        state, _, own = rest.partition("/")
        ours = f"optimizer/main/net.{own}/{state}" if kind == "optimizer" else f"model/net.{rest}"
        held = found.tensors.get(ours, found.tensors.get(f"buffer/net.{rest}"))
        assert held is not None
        assert torch.equal(held, tensor), name
    assert found.context["optimizers"]["main"][0]["params"] == ["net.a.weight", "net.b.weight"]


def test_layers_that_lie_on_an_axis_become_tensors_of_their_own(tmp_path: Path) -> None:
    said = wishes(optimizer="none", stacks=(r"decoder\.layers\.(.*)=decoder.layers.#.\1",))
    arrive(fixtures.path("mcore"), str(tmp_path / "run"), said)
    found, whole = everstep.restore(tmp_path / "run").tensors, fixtures.reference("mcore")
    for at in range(4):
        layer = whole["model/decoder.layers.weight"][at]
        assert torch.equal(found[f"model/decoder.layers.{at}.weight"], layer)
    assert torch.equal(found["model/decoder.weight"], whole["model/decoder.weight"])
    assert "model/decoder.layers.weight" not in found


def test_unstacking_needs_an_axis_and_a_number(tmp_path: Path) -> None:
    for text, said in ((r"w=w", "no '#'"), (r"none=n.#", "no name matches")):
        with pytest.raises(Misuse, match=said):
            imported(tmp_path, {"w": torch.ones(2, 2)}, stacks=(text,))


def test_buffers_are_told_by_type_by_name_and_by_the_caller(tmp_path: Path) -> None:
    tensors = {"w": torch.ones(2), "ids": torch.arange(3), "bn.running_mean": torch.ones(2), "freq": torch.ones(3)}
    found = imported(tmp_path, tensors, buffers=("fr.*",))
    assert sorted(found) == ["buffer/bn.running_mean", "buffer/freq", "buffer/ids", "model/w"]


def test_a_tied_name_must_hold_the_same_bits(tmp_path: Path) -> None:
    one = torch.arange(4.0)
    with pytest.raises(Unsupported, match="differ"):
        imported(tmp_path, {"w": one, "head": one + 1}, ties=("head=w",))
    with pytest.raises(Misuse, match="no parameter 'none'"):
        imported(tmp_path, {"w": one}, ties=("head=none",))
    assert sorted(imported(tmp_path, {"w": one, "head": one.clone()}, ties=("head=w",))) == ["model/w"]
    net = torch.nn.Module()
    net.w = net.head = torch.nn.Parameter(torch.zeros(4))
    settings = everstep.Settings(unmatched="keep")
    with everstep.open(tmp_path / "run", model=net, optimizer=torch.optim.SGD([net.w]), settings=settings) as run:
        run.resume()
    assert torch.equal(net.w, one)
