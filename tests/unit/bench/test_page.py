"""The page shows every case once, and no missed target is left out."""

from typing import Any

from bench.overhead.page import tables


def row(case: str, metric: str, value: float, unit: str, target: str | None = None, met: bool | None = None) -> Any:
    return {"case": case, "metric": metric, "value": value, "unit": unit, "target": target, "met": met}


ROWS = [
    row("gpt compiled", "noise_pct", 0.1, "%"),
    row("gpt compiled, state", "overhead_pct", 0.51, "%", "<= 1.0", True),
    row("gpt compiled, state", "not_recorded", 3, "steps", "<= 0", False),
    row("gpt compiled, torch.save, every 1", "overhead_pct", 5123.4, "%"),
    row("gpt compiled, torch.save, every 40", "overhead_pct", 128.0, "%"),
    row("gpt compiled, torch.save", "usable_interval", 1463, "steps"),
]


def test_ours_and_theirs_have_a_line_each() -> None:
    text = tables(ROWS)
    assert "| gpt compiled, state | 0.51 % |" in text
    assert "| gpt compiled, torch.save | 5,123 % | 1,463 steps |" in text
    assert "128 %" not in text


def test_missed_targets_are_named() -> None:
    text = tables(ROWS)
    assert "1 met, 1 missed" in text
    assert "- gpt compiled, state: not_recorded 3 steps, wanted <= 0" in text
