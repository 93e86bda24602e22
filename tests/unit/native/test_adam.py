"""Laws of `adam`: the bits of torch.optim.Adam and AdamW on the CPU, for every implementation and option."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.native import _kernels, reference
from tests.unit.native.twins import Run, adam_twins, bits_differing, wild

IMPLEMENTATIONS = ["single", "foreach", "fused"]
OPTIMIZERS = [torch.optim.Adam, torch.optim.AdamW]
DTYPES = [torch.float32, torch.float64]
PLAIN = (1.3e-3, 0.9, 0.999, 1e-8, 0.0)
DECAY = (1.7e-3, 0.9, 0.999, 1e-8, 0.037)
FAR = (1.1e-2, 0.3, 0.95, 1e-6, 0.1)  # 1 - beta1 > 1/2: torch's lerp starts from its other end
SCHEDULE = [(1e-3 * (j + 1), 0.95 - 0.05 * j, 0.99, 1e-8, 0.01 * j) for j in range(7)]

cells = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.__name__)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@cells
@optimizers
@dtypes
@pytest.mark.parametrize("hyper", [[PLAIN], [DECAY], [FAR], SCHEDULE], ids=["plain", "decay", "far", "schedule"])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_adam_equals_torch_bit_for_bit(
    implementation: str, optimizer: type[torch.optim.Adam], dtype: torch.dtype, hyper: Any, options: dict[str, bool]
) -> None:
    run = Run(implementation, hyper, dtype, options=options)
    assert bits_differing(*adam_twins(run, optimizer)) == 0


@cells
@optimizers
@dtypes
def test_zeros_denormals_and_overflow_round_as_in_torch(
    implementation: str, optimizer: type[torch.optim.Adam], dtype: torch.dtype
) -> None:
    run = Run(implementation, [DECAY], dtype, draw=wild, options={"amsgrad": True, "maximize": True})
    assert bits_differing(*adam_twins(run, optimizer)) == 0


@cells
@dtypes
def test_every_kernel_set_gives_the_same_bits(kernel_set: str, implementation: str, dtype: torch.dtype) -> None:
    assert _kernels.capability() == kernel_set
    run = Run(implementation, [DECAY, FAR], dtype, draw=wild, steps=6, at_once=4, options={"amsgrad": True})
    assert bits_differing(*adam_twins(run, torch.optim.AdamW)) == 0


@cells
def test_a_tensor_without_a_gradient_keeps_its_state_and_step(implementation: str) -> None:
    run = Run(implementation, [DECAY], skipping=True)
    assert bits_differing(*adam_twins(run, torch.optim.AdamW)) == 0


@dtypes
@optimizers
def test_an_lr_held_as_a_float32_tensor_rounds_as_in_torch(
    dtype: torch.dtype, optimizer: type[torch.optim.Adam]
) -> None:
    rows = [(torch.tensor(lr), *rest) for lr, *rest in SCHEDULE]
    assert bits_differing(*adam_twins(Run("single", rows, dtype), optimizer)) == 0  # type: ignore[arg-type]


def test_an_lr_held_as_a_tensor_is_its_item_in_the_fused_kernel() -> None:
    rows = [(torch.tensor(lr), *rest) for lr, *rest in SCHEDULE]
    assert bits_differing(*adam_twins(Run("fused", rows), torch.optim.AdamW)) == 0  # type: ignore[arg-type]


def test_fused_with_beta1_zero_keeps_the_sign_of_zero() -> None:
    run = Run("fused", [(1e-3, 0.0, 0.9, 1e-8, 0.1)], draw=wild, options={"maximize": True})
    assert bits_differing(*adam_twins(run, torch.optim.AdamW)) == 0


@cells
@pytest.mark.parametrize("torch_threads", [1, 2, 3])
def test_no_number_of_threads_changes_a_bit(implementation: str, torch_threads: int) -> None:
    torch.set_num_threads(torch_threads)
    run = Run(implementation, [DECAY], lengths=(1_200_017, 999_983), steps=3, at_once=2, threads=4 - torch_threads)
    assert bits_differing(*adam_twins(run, torch.optim.AdamW)) == 0


@cells
def test_infinite_and_nan_gradients_poison_the_same_elements(implementation: str) -> None:
    run = Run(implementation, [DECAY], lengths=(64, 77, 1001), steps=6, options={"amsgrad": True})
    for j, row in enumerate(run.gradients):
        for g in row:
            g[j::31] = float("inf")
            g[j + 7 :: 29] = float("-inf")
            g[j + 3 :: 37] = float("nan")
            g[-1] = float("nan")
    expected, actual = adam_twins(run, torch.optim.AdamW)
    for a, b in zip(expected, actual, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
        assert bits_differing([a.nan_to_num(nan=0.0)], [b.nan_to_num(nan=0.0)]) == 0


lengths = st.lists(st.integers(0, 400), min_size=1, max_size=6)
unit = st.floats(0.01, 0.9999)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(IMPLEMENTATIONS), st.sampled_from(DTYPES), lengths, st.floats(1e-6, 1.0), unit, unit, unit)
def test_no_choice_of_hyperparameters_changes_the_rounding(
    implementation: str, dtype: torch.dtype, sizes: list[int], lr: float, beta1: float, beta2: float, decay: float
) -> None:
    run = Run(implementation, [(lr, beta1, beta2, 1e-8, decay)], dtype, sizes, steps=5, at_once=3)
    for optimizer in OPTIMIZERS:
        assert bits_differing(*adam_twins(run, optimizer)) == 0


PROBE = """
import torch
from everstep.native import reference
from tests.unit.native.test_adam import DECAY
from tests.unit.native.twins import Run, adam_twins
for implementation in ("single", "fused"):
    expected, _ = adam_twins(Run(implementation, [DECAY], steps=3), torch.optim.AdamW)
    print(reference.digest(torch.cat(expected)))
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.parametrize(("capability", "same"), [("avx2", True), ("default", False)])
def test_only_torch_without_fma_trains_to_other_bits(capability: str, same: bool) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    if here not in ("AVX2", "AVX512"):
        pytest.skip("torch runs without AVX2 here")
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    *digests, reported = result.stdout.split("\n")[:3]
    assert reported == capability.upper()
    for digest, implementation in zip(digests, ("single", "fused"), strict=True):
        expected, _ = adam_twins(Run(implementation, [DECAY], steps=3), torch.optim.AdamW)
        assert (digest == str(reference.digest(torch.cat(expected)))) is same


ONE: dict[str, Any] = {
    "implementation": "fused",
    "parameters": [0],
    "exp_avgs": [0],
    "exp_avg_sqs": [0],
    "max_exp_avg_sqs": [],
    "counts": [0],
    "gradients": [[0]],
    "steps": [[1.0]],
    "hyper": [PLAIN],
    "decoupled": True,
    "maximize": False,
    "double": False,
    "lr_float32": False,
    "square_root": 0,
    "threads": 1,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"exp_avgs": []}, "exp_avgs has 0 entries, expected 1"),
        ({"exp_avg_sqs": [0, 0]}, "exp_avg_sqs has 2 entries"),
        ({"max_exp_avg_sqs": [0, 0]}, "max_exp_avg_sqs has 2 entries"),
        ({"counts": [-1]}, "negative"),
        ({"gradients": []}, "gradients has 0 entries, expected 1"),
        ({"gradients": [[]]}, "a row of gradients has 0 entries, expected 1"),
        ({"steps": [[1.0, 2.0]]}, "a row of steps has 2 entries"),
        ({"threads": 0}, "threads"),
        ({"implementation": "capturable"}, "none of single, foreach, fused"),
        ({"square_root": 1}, "pass square_root=0"),
        ({"lr_float32": True}, "only 'single'"),
        ({"implementation": "foreach", "hyper": [(1e-3, 0.0, 0.9, 1e-8, 0.0)]}, "beta1 = 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_call_that_cannot_be_exact_or_complete_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _kernels.adam(**{**ONE, **wrong})
