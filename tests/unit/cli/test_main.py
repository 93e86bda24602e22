"""Starting, errors, exit codes: what holds for every verb."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.runs import NAME, contents, python

LIGHT = [
    ["ls"], ["ls", "--json"], ["show"], ["show", "--json"], ["log"], ["log", "--json"], ["verify"],
    ["verify", "--json"],
    ["prune", "--keep", "last:3", "--dry-run"], ["prune", "--keep", "bases:2"],
]  # fmt: skip
CHECK = """
import sys
from everstep.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    heavy = [name for name in ("torch", "numpy", "rich") if name in sys.modules]
    sys.exit(f"imported {heavy}" if heavy else end.code)
"""


@pytest.mark.parametrize("verb", LIGHT, ids=" ".join)
def test_looking_at_a_run_imports_neither_torch_nor_numpy(run: Path, verb: list[str]) -> None:
    done = python(CHECK, verb[0], run, *verb[1:])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", LIGHT[:-1], ids=" ".join)
def test_looking_changes_nothing(run: Path, cli, verb: list[str]) -> None:
    before = contents(run)
    assert cli(verb[0], run, *verb[1:]).code == 0
    assert contents(run) == before


@pytest.mark.parametrize("verb", ["ls", "show", "log", "verify", "prune", "restore", "diff"])
def test_an_error_is_one_message_and_exit_code_2(tmp_path: Path, cli, verb: str) -> None:
    more = {"prune": ["--keep", "last:1"], "restore": ["--to", tmp_path / "x"], "diff": [1, 2]}
    done = cli(verb, tmp_path / "nowhere", *more.get(verb, []))
    assert done.code == 2
    assert done.err.startswith("everstep: ")
    assert "no such directory" in done.err
    assert "Traceback" not in done.err


def test_a_fault_of_ours_is_short_unless_debug_asks(run: Path, cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("everstep.cli.ls.ls", fail)
    done = cli("ls", run)
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "ZeroDivisionError: inside" in done.err
    from everstep.cli.main import main

    with pytest.raises(ZeroDivisionError):
        main(["--debug", "ls", str(run)])


def test_usage_errors_are_clicks_own(cli) -> None:
    done = cli("ls")
    assert done.code == 2
    assert "Usage:" in done.err


@pytest.mark.parametrize("verb", [["show"], ["diff", "20", "21"]])
def test_names_cannot_steer_the_terminal(run: Path, cli, verb: list[str]) -> None:
    done = cli(verb[0], run, *verb[1:])
    assert "\x1b" not in done.out
    assert "we\\x1b[31mird" in done.out
    assert any(NAME in tensor["name"] for tensor in cli(verb[0], run, *verb[1:], "--json").json()["tensors"])


def test_the_version_is_printed(cli) -> None:
    from everstep import __version__

    assert cli("--version").out == f"everstep {__version__}\n"


def test_python_dash_m_is_the_same_program(run: Path, cli) -> None:
    done = subprocess.run([sys.executable, "-m", "everstep", "ls", run], capture_output=True, text=True, check=True)
    assert done.stdout == cli("ls", run).out


def test_the_shell_can_complete_verbs() -> None:
    variables = {**os.environ, "_EVERSTEP_COMPLETE": "bash_complete", "COMP_WORDS": "everstep pr", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "everstep"], capture_output=True, text=True, env=variables, check=False
    )
    assert done.stdout == "plain,prune\n"


def test_a_reader_that_stops_early_is_no_error(run: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m everstep log {shlex.quote(str(run))} --json | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_progress_is_shown_on_a_terminal_only(run: Path, cli) -> None:
    assert cli("verify", run).err == ""
    parent, child = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "everstep", "verify", str(run)], stdout=subprocess.PIPE, stderr=child, check=False
        )
        os.close(child)
        assert done.returncode == 0
        assert b"reading" in os.read(parent, 1 << 16)
    finally:
        os.close(parent)
