"""The picture shows what the rows say: each program once, everstep first, every bar with its value."""

import math
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.plot import LEFT, Bar, at, bars, drawing, figure

ROWS: list[dict[str, Any]] = [
    {"case": case, "metric": metric, "value": value}
    for case, metric, value in (
        ("m compiled, torch.save, every 1", "overhead_pct", 5140.0),
        ("m compiled, torch.save, every 10", "overhead_pct", 514.0),
        ("m compiled, gradient bf16", "overhead_pct", 0.4),
        ("m compiled, gradient bf16", "step_ms", 41.0),
        ("m eager, gradient bf16", "overhead_pct", 9.0),
        ("n <eager> eager, state", "overhead_pct", -0.2),
    )
]


def test_bars_are_the_overheads_at_every_step_with_everstep_first() -> None:
    assert bars(ROWS) == {
        "m compiled": [Bar("gradient bf16", 0.4, ours=True), Bar("torch.save", 5140.0, ours=False)],
        "n <eager> eager": [Bar("state", -0.2, ours=True)],
    }


def test_the_picture_is_well_formed_and_holds_every_value() -> None:
    result = {
        "rows": ROWS,
        "machine": {"gpu": "", "cpu": "a & b"},
        "versions": {"torch": "2.11", "everstep": "0.1"},
    }
    said = "".join(ElementTree.fromstring(drawing(result)).itertext())  # noqa: S314 our own text
    for text in ("0.40 %", "5,140 %", "-0.20 %", "n <eager> eager", "a & b"):
        assert text in said


@pytest.mark.parametrize("pct", [-3.0, 0.0, 0.01, 0.1])
def test_what_is_too_small_for_the_scale_stands_at_its_start(pct: float) -> None:
    assert at(pct) == LEFT


def test_what_is_too_large_for_the_scale_stands_at_its_end() -> None:
    assert at(1e9) == at(10_000)


def test_a_decade_is_as_wide_as_any_other() -> None:
    assert math.isclose(at(10) - at(1), at(1000) - at(100))


@pytest.mark.parametrize("pct, text", [(0.05, "0.05 %"), (12.34, "12.3 %"), (6840.4, "6,840 %"), (-0.05, "-0.05 %")])
def test_a_figure_has_three_digits_or_so(pct: float, text: str) -> None:
    assert figure(pct) == text
