"""The source keeps its own laws, and every law can fail."""

from collections.abc import Callable

import pytest

from tests.laws import syntax

Rule = Callable[[str, str], list[str]]
LINES_MAX = 350


def length(path: str, text: str) -> list[str]:
    return syntax.too_long(path, text, LINES_MAX)


RULES: dict[str, Rule] = {
    "imports go one way": syntax.wrong_imports,
    "data never becomes code": syntax.runs_code,
    "only the store changes files": syntax.changes_files,
    "names say something": syntax.bad_names,
    "a file is one idea": length,
}


@pytest.mark.parametrize("law", RULES)
def test_the_source_keeps_the_law(law: str) -> None:
    assert syntax.broken(RULES[law], syntax.sources()) == []


BAD: list[tuple[str, str, str]] = [
    ("imports go one way", "codec/x.py", "from everstep.store import disk"),
    ("imports go one way", "store/x.py", "from everstep.log.frame import Frame"),
    ("imports go one way", "store/x.py", "def f():\n    import everstep.api"),
    ("imports go one way", "keeper/x.py", "from everstep.recover import choose"),
    ("imports go one way", "recover/x.py", "from everstep.keeper.pace import Pace"),
    ("imports go one way", "log/x.py", "from ..api import open"),
    ("imports go one way", "log/x.py", "from everstep import api"),
    ("imports go one way", "nowhere/x.py", "from everstep.errors import Damaged"),
    ("data never becomes code", "codec/x.py", "import pickle"),
    ("data never becomes code", "codec/x.py", "from marshal import loads"),
    ("data never becomes code", "codec/x.py", "def f(x):\n    import shelve"),
    ("data never becomes code", "codec/x.py", "eval('1')"),
    ("data never becomes code", "codec/x.py", "exec('1')"),
    ("data never becomes code", "recover/x.py", "torch.load(path, weights_only=True)"),
    ("data never becomes code", "store/x.py", "torch.save({}, path)"),
    ("data never becomes code", "cli/x.py", "subprocess.run('ls', shell=True)"),
    ("data never becomes code", "cli/x.py", "os.system('ls')"),
    ("only the store changes files", "log/x.py", "open(path, 'w')"),
    ("only the store changes files", "log/x.py", "open(path, mode='ab')"),
    ("only the store changes files", "log/x.py", "Path(path).open('x')"),
    ("only the store changes files", "log/x.py", "os.open(path, os.O_RDWR)"),
    ("only the store changes files", "log/x.py", "os.replace(a, b)"),
    ("only the store changes files", "log/x.py", "os.fsync(3)"),
    ("only the store changes files", "log/x.py", "os.pwrite(3, b'', 0)"),
    ("only the store changes files", "log/x.py", "shutil.rmtree(path)"),
    ("only the store changes files", "log/x.py", "Path(path).write_text('')"),
    ("only the store changes files", "log/x.py", "tempfile.mkstemp()"),
    ("names say something", "log/utils.py", ""),
    ("names say something", "log/x.py", "class SegmentManager: pass"),
    ("names say something", "log/x.py", "class Helper: pass"),
    ("a file is one idea", "log/x.py", "\n" * 351),
]


@pytest.mark.parametrize("law, path, text", BAD)
def test_the_law_can_fail(law: str, path: str, text: str) -> None:
    assert RULES[law](path, text)


GOOD: list[tuple[str, str, str]] = [
    ("imports go one way", "log/x.py", "from everstep.store import disk\nimport msgspec"),
    ("imports go one way", "capture/x.py", "from everstep.store import base"),
    ("imports go one way", "api.py", "if TYPE_CHECKING:\n    from everstep.cli import main"),
    ("only the store changes files", "store/x.py", "os.rename(a, b)"),
    ("only the store changes files", "log/x.py", "open(path)\nopen(path, 'rb')"),
    ("only the store changes files", "cli/x.py", "os.open(os.devnull, os.O_WRONLY)"),
    ("only the store changes files", "log/x.py", "disk.rename(a, b)\nbook.write(x)"),
    ("data never becomes code", "x.py", "re.compile('x')\nsubprocess.run(['ls'], shell=False)"),
]


@pytest.mark.parametrize("law, path, text", GOOD)
def test_the_law_does_not_cry_wolf(law: str, path: str, text: str) -> None:
    assert RULES[law](path, text) == []


def test_the_laws_see_every_module() -> None:
    seen = {path for path, _ in syntax.sources()}
    assert {"api.py", "store/disk.py", "log/frame.py", "codec/tree.py", "native/reference.py"} <= seen


def test_nothing_in_the_table_of_sideways_imports_is_left_over() -> None:
    """An exception that nobody uses any more is taken out. (cli, integrations and report are being written.)"""
    used = {
        (syntax.package_of(path), name.split(".")[1])
        for path, text in syntax.sources()
        for name in syntax.imported(syntax.ast.parse(text), path)
        if name.startswith("everstep.")
    }
    early = {"cli", "integrations", "native"}
    assert [(a, b) for a, table in syntax.WITHIN.items() if a not in early for b in table if (a, b) not in used] == []
