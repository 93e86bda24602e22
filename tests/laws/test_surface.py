"""What users see is frozen: a change of it is a decision, made here."""

import dataclasses
import subprocess
import sys

import everstep
from everstep.errors import EverstepError
from everstep.settings import Settings

SETTINGS = [
    "source", "gradients", "buffer_bytes_max", "stall_ms_max", "segment_bytes", "base_log_bytes_max",
    "replay_seconds_max", "retain_bytes_max", "digest_every", "unmatched", "linger_seconds", "take_over",
]  # fmt: skip
NAMES = [
    "Bucket", "Buckets", "Loader", "Place", "Restored", "Run", "Settings", "__version__", "errors", "open", "restore",
]  # fmt: skip
RUN = {"resume", "commit", "acknowledged", "wait", "health", "predicted", "ledger", "close"}
ERRORS = {
    "EverstepError", "NotARun", "UnknownFormat", "RunInUse", "Fenced", "Damaged", "StepNotHeld", "Mismatch",
    "ReplayDiffers", "CannotReplay", "Unsupported", "Misdescribed", "Misuse", "StoreFailed", "NotAcknowledged",
    "TooLittleMemory",
}  # fmt: skip


def test_the_settings_are_these_and_at_most_twelve() -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    assert names == SETTINGS
    assert len(names) <= 12


def test_settings_cannot_be_changed_after_they_are_made() -> None:
    assert Settings.__dataclass_params__.frozen


def test_the_public_names_are_these() -> None:
    assert everstep.__all__ == NAMES
    for name in NAMES:
        assert getattr(everstep, name) is not None


def test_a_run_offers_these_and_no_more() -> None:
    assert {name for name in dir(everstep.Run) if not name.startswith("_")} == RUN


def test_the_errors_are_these_and_all_are_ours() -> None:
    found = {name: value for name, value in vars(everstep.errors).items() if isinstance(value, type)}
    assert found.keys() == ERRORS
    assert all(issubclass(value, EverstepError) for value in found.values())


LOOKING = """
import importlib, pkgutil, sys
import everstep, everstep.store, everstep.log, everstep.codec
import everstep.log.inventory, everstep.recover.choose
for package in (everstep.store, everstep.log, everstep.codec):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print([name for name in ("torch", "numpy") if name in sys.modules])
"""


def test_looking_at_a_run_imports_neither_torch_nor_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_that_law_can_fail() -> None:
    script = LOOKING.replace("print(", "import torch\nprint(")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "torch" in done.stdout


def test_integrations_are_found_where_the_docs_say() -> None:
    script = "import everstep\nprint(everstep.integrations.deepspeed.open, everstep.integrations.zero_redundancy.seen)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("<function") == 2
