"""Laws of `sgd`: the bits of torch.optim.SGD on the CPU, for every implementation and option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.native import _kernels
from tests.unit.native.twins import Run, bits_differing, sgd_twins, wild

IMPLEMENTATIONS = ["single", "foreach", "fused"]
DTYPES = [torch.float32, torch.float64]
HYPER = {
    "plain": [(0.07, 0.0, 0.0, 0.0)],
    "decay": [(0.07, 0.0, 0.0, 0.013)],
    "momentum": [(0.07, 0.9, 0.0, 0.0)],
    "dampening and decay": [(0.07, 0.9, 0.1, 0.013)],
    "schedule": [(0.1 / (j + 1), 0.95 - 0.02 * j, 0.05 * j, 0.01 * j) for j in range(7)],
}

cells = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@cells
@dtypes
@pytest.mark.parametrize("hyper", HYPER.values(), ids=HYPER.keys())
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("draw", [None, wild], ids=["ordinary", "wild"])
def test_sgd_equals_torch_bit_for_bit(
    implementation: str, dtype: torch.dtype, hyper: Any, maximize: bool, draw: Any
) -> None:
    run = Run(implementation, hyper, dtype, options={"maximize": maximize}, **({"draw": draw} if draw else {}))
    assert bits_differing(*sgd_twins(run)) == 0


@cells
@dtypes
@pytest.mark.parametrize("decay", [0.0, 0.013])
def test_nesterov_equals_torch_bit_for_bit(implementation: str, dtype: torch.dtype, decay: float) -> None:
    run = Run(implementation, [(0.07, 0.9, 0.0, decay)], dtype, options={"nesterov": True})
    assert bits_differing(*sgd_twins(run)) == 0


@cells
@dtypes
def test_every_kernel_set_gives_the_same_bits(kernel_set: str, implementation: str, dtype: torch.dtype) -> None:
    assert _kernels.capability() == kernel_set
    run = Run(implementation, HYPER["schedule"], dtype, draw=wild, steps=6, at_once=4)
    assert bits_differing(*sgd_twins(run)) == 0


@cells
def test_a_tensor_without_a_gradient_keeps_its_state(implementation: str) -> None:
    run = Run(implementation, HYPER["dampening and decay"], skipping=True)
    assert bits_differing(*sgd_twins(run)) == 0


@cells
def test_an_lr_held_as_a_tensor_is_its_item(implementation: str) -> None:
    rows = [(torch.tensor(lr), *rest) for lr, *rest in HYPER["schedule"]]
    assert bits_differing(*sgd_twins(Run(implementation, rows))) == 0  # type: ignore[arg-type]


@cells
@pytest.mark.parametrize("torch_threads", [1, 2, 3])
def test_no_number_of_threads_changes_a_bit(implementation: str, torch_threads: int) -> None:
    torch.set_num_threads(torch_threads)
    hyper = HYPER["dampening and decay"]
    run = Run(implementation, hyper, lengths=(1_200_017, 999_983), steps=3, at_once=2, threads=4 - torch_threads)
    assert bits_differing(*sgd_twins(run)) == 0


lengths = st.lists(st.integers(0, 400), min_size=1, max_size=6)
unit = st.floats(0.01, 0.9999)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(IMPLEMENTATIONS), st.sampled_from(DTYPES), lengths, st.floats(1e-6, 1.0), unit, unit, unit)
def test_no_choice_of_hyperparameters_changes_the_rounding(
    implementation: str, dtype: torch.dtype, sizes: list[int], lr: float, momentum: float, damp: float, decay: float
) -> None:
    run = Run(implementation, [(lr, momentum, damp, decay)], dtype, sizes, steps=5, at_once=3)
    assert bits_differing(*sgd_twins(run)) == 0


ONE: dict[str, Any] = {
    "implementation": "single",
    "parameters": [0],
    "momentum_buffers": [0],
    "counts": [0],
    "gradients": [[0]],
    "first": [[True]],
    "hyper": [(0.1, 0.9, 0.0, 0.0)],
    "nesterov": False,
    "maximize": False,
    "double": False,
    "threads": 1,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"momentum_buffers": []}, "momentum_buffers has 0 entries, expected 1"),
        ({"hyper": [(0.1, 0.0, 0.0, 0.0)]}, "momentum_buffers has 1 entries, expected 0"),
        ({"counts": []}, "counts has 0 entries"),
        ({"counts": [-1]}, "negative"),
        ({"gradients": [[0], [0]]}, "gradients has 2 entries, expected 1"),
        ({"first": [[]]}, "a row of first has 0 entries, expected 1"),
        ({"threads": 0}, "threads"),
        ({"implementation": "sparse"}, "none of single, foreach, fused"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_lists_of_the_wrong_length_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _kernels.sgd(**{**ONE, **wrong})
