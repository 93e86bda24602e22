"""What a state costs a program whose steps and bus are known."""

import json
from pathlib import Path

import pytest

from everstep.recording.plan import Plan, Planner
from everstep.types import Box, Tensor

BUS = 55e9


def state(layers: int, width: int) -> tuple[list[Tensor], int]:
    """Parameters and moments of a transformer, about; and the bytes of its gradients."""
    found: list[Tensor] = []
    shapes = {f"h.{at}.{name}": shape for at in range(layers) for name, shape in (
        ("up", (4 * width, width)), ("down", (width, 4 * width)), ("qkv", (3 * width, width)), ("out", (width, width)),
        ("norm", (width,)), ("bias", (width,)),
    )}  # fmt: skip
    for name, shape in {"embed": (50304, width), **shapes}.items():
        nbytes = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        box = Box((0,) * len(shape), shape)
        prefixes = ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq")
        found += [Tensor(f"{prefix}/{name}", "F32", shape, box, nbytes) for prefix in prefixes]
    return found, sum(tensor.nbytes for tensor in found) // 3


def planned(described: list[Tensor], gradient_bytes: int, step: float, *, spread: bool) -> Plan:
    planner = Planner(BUS)
    for at in range(17):
        planner.stepped(at * step)
    return planner.plan(described, gradient_bytes, spread=spread)


def bytes_of(described: list[Tensor], which: frozenset[int]) -> int:
    return sum(described[at].nbytes for at in which)


def test_nothing_is_planned_before_a_step_was_timed() -> None:
    described, gradient = state(2, 64)
    plan = Planner(BUS).plan(described, gradient, spread=True)
    assert plan == Plan((tuple(range(len(described))),), frozenset(), None)


def test_a_base_beside_gradients_is_packed_in_part_rather_than_waited_for() -> None:
    """355 M parameters in steps of 90 ms: state and gradients take 104 ms of the bus."""
    described, gradient = state(24, 1024)
    total = sum(tensor.nbytes for tensor in described)
    assert (total + gradient) / BUS > 0.087 > total / BUS
    plan = planned(described, gradient, 0.090, spread=False)
    assert len(plan.rounds) == 1
    assert plan.stall_seconds == 0
    late = bytes_of(described, plan.snapshots)
    assert (total + gradient - late) / BUS <= 0.090, "what is read in place fits before the optimizer"
    assert late / BUS <= 0.022, "and the rest has left before activations are large"


def test_a_base_that_no_step_can_carry_says_how_long_training_waits() -> None:
    described, gradient = state(48, 1600)
    plan = planned(described, gradient, 0.2, spread=False)
    total = sum(tensor.nbytes for tensor in described)
    late = bytes_of(described, plan.snapshots)
    assert plan.stall_seconds == pytest.approx((total + gradient - late) / BUS - 0.2, abs=0.03)
    spread = planned(described, gradient, 0.2, spread=True)
    assert len(spread.rounds) > 2
    assert not spread.snapshots
    assert sorted(at for part in spread.rounds for at in part) == list(range(len(described)))


def test_what_training_waits_for_copies_is_not_its_own_time() -> None:
    """1.5 G parameters in steps of 190 ms. A whole state would make each last 350 ms, and a plan for such steps would
    then be right for ever."""
    described, gradient = state(48, 1600)
    planner, now, waited = Planner(BUS), 0.0, 0.0
    for _ in range(40):
        planner.stepped(now, waited)
        plan = planner.plan(described, gradient, spread=True)
        moved = gradient + max(sum(described[at].nbytes for at in part) for part in plan.rounds)
        wait = max(0.0, moved / BUS - 0.18)
        now, waited = now + 0.19 + wait, waited + wait
    assert 5 <= len(plan.rounds) <= 6
    assert wait == 0


def test_a_plan_is_kept_while_steps_are_as_long_as_they_were() -> None:
    described, gradient = state(4, 256)
    planner, now = Planner(BUS), 0.0
    made = []
    for seconds in [0.02] * 25 + [0.0205] * 40 + [0.03] * 60:
        planner.stepped(now)
        now += seconds
        made.append(planner.plan(described, gradient, spread=True))
    assert made[24] is made[64]
    assert made[64] is not made[-1]


def test_what_of_a_base_is_read_in_place_is_there_a_little_before_it_must_be() -> None:
    """355 M parameters, gradients rounded: a base would just fit, if the bus never rested."""
    described, gradient = state(24, 1024)
    total = sum(tensor.nbytes for tensor in described)
    plan = planned(described, gradient // 2, 0.092, spread=False)
    direct = total - bytes_of(described, plan.snapshots)
    assert plan.stall_seconds == 0
    assert (direct + gradient // 2) / BUS <= 0.95 * 0.089


@pytest.mark.parametrize(("source", "packed"), [("gradient fp32", False), ("gradient bf16", True)])
def test_what_training_waits_on_a_crowded_device_is_what_was_measured(source: str, packed: bool) -> None:
    """On an H200 of which training had all but a few megabytes, against the overhead that was measured."""
    rows = json.loads((Path(__file__).parents[3] / "bench/results/overhead-fixed-clock.json").read_text())["rows"]
    found = {(row["case"], row["metric"]): row for row in rows if row["case"].startswith("gpt-355m compiled tight")}
    case = f"gpt-355m compiled tight, {source}"
    step = float(found[case, "step_ms"]["baseline"].split()[-2]) / 1000
    gradient, state_bytes = (
        int(1e6 * found[name, "bytes_per_step"]["value"]) for name in (case, "gpt-355m compiled tight, state")
    )
    planner = Planner(1e9 * found["gpt-355m compiled tight", "host_bandwidth"]["value"])
    for at in range(17):
        planner.stepped(at * step)
    waited = planner.waited(gradient, state_bytes, packed=packed)
    assert 100 * waited / step == pytest.approx(found[case, "overhead_pct"]["value"], abs=1.5)


def waiting(described: list[Tensor], step: float, waits: list[float]) -> tuple[Planner, Plan]:
    """After steps of so many seconds of their own, and so much more of waiting in each."""
    planner, now, waited = Planner(BUS), 0.0, 0.0
    planner.stepped(now, waited)
    for wait in waits:
        waited += wait
        now += step + wait
        planner.stepped(now, waited)
    return planner, planner.plan(described, 0, spread=False)


def test_a_state_that_is_late_step_after_step_costs_what_was_seen() -> None:
    """774 M parameters in steps of 187 ms: a state fits, by what the bus gives while nothing is trained."""
    described, _ = state(36, 1280)
    planner, plan = waiting(described, 0.187, [0.010] * 40)
    assert plan.predicted is not None
    assert plan.predicted.overhead < 0.01
    assert planner.whole(plan) == pytest.approx(plan.predicted.overhead + 0.010 / 0.187, rel=0.01)


def test_what_was_late_for_a_while_is_not_held_against_it() -> None:
    described, _ = state(36, 1280)
    planner, plan = waiting(described, 0.187, [0.010] * 30 + [0.0] * 10)
    assert plan.predicted is not None
    assert planner.whole(plan) == plan.predicted.overhead
    planner, plan = waiting(described, 0.187, [0.010] * 30)
    assert planner.whole(plan) == plan.predicted.overhead, "thirty steps may still get better"


def test_what_was_waited_before_a_turn_was_for_something_else() -> None:
    described, _ = state(36, 1280)
    planner, plan = waiting(described, 0.187, [0.010] * 40)
    planner.turned()
    assert plan.predicted is not None
    assert planner.whole(plan) == plan.predicted.overhead
