"""What several tests look at."""

import shutil
from pathlib import Path

import pytest

from tests import worlds
from tests.cluster.two import trained


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("two")
    worlds.spawn(trained, (home,), 2)
    return home / "run"


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")
