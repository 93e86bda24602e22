"""One small run, made once: three epochs, an older branch, several bases and segments. Tests work on copies."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.runs import Done, Odd, train


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    train(path, 12)
    train(path, 20)
    train(path, 26, at=15)
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "run"
    train(path, 5, kind=Odd)
    return path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command in this process."""
    from everstep.cli.main import main

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Done(int(end.value.code or 0), printed.out, printed.err)

    return call
