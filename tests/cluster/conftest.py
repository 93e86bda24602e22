"""What several tests look at."""

import shutil
from pathlib import Path

import pytest
import torch.multiprocessing as mp

from tests.cluster.two import trained


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("two")
    mp.spawn(trained, (home,), nprocs=2)  # type: ignore[no-untyped-call]
    return home / "run"


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")
