"""The rules of the house over the syntax tree: text in, broken rules out. Pure, so that each can be shown to fail."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "everstep"
LEVELS: tuple[frozenset[str], ...] = tuple(
    frozenset(level.split())
    for level in (
        "errors types settings native frugal uncollected __init__",
        "codec store ring capture compress tune url company",
        "log layout", "shadow foreign", "keeper recover dcp", "recording", "api", "integrations report cli __main__",
    )
)  # fmt: skip
WITHIN: dict[str, frozenset[str]] = {
    "capture": frozenset({"codec", "store", "ring"}),
    "ring": frozenset({"store"}),
    "native": frozenset({"errors", "types"}),
    "frugal": frozenset({"errors"}),
    "cli": frozenset({"report"}),
    "integrations": frozenset({"report"}),
    "__main__": frozenset({"cli"}),
}
"""Imports between packages of one level, all that there are: what captures a state puts it into shared memory."""
BANNED_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})
BANNED_CALLS = frozenset({"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "os.system", "os.popen"})
CHANGING = frozenset({
    "os.rename", "os.renames", "os.replace", "os.unlink", "os.remove", "os.removedirs", "os.mkdir", "os.makedirs",
    "os.rmdir", "os.truncate", "os.ftruncate", "os.fsync", "os.fdatasync", "os.link", "os.symlink", "os.write",
    "os.pwrite", "os.pwritev", "os.writev", "os.mkfifo", "os.mknod", "os.chmod", "os.fchmod", "os.chown",
    "os.posix_fallocate", "os.sendfile", "os.copy_file_range",
})  # fmt: skip
CHANGING_METHODS = frozenset({"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"})
WRITING_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC")
FORBIDDEN = frozenset({
    "manager", "handler", "util", "utils", "helper", "helpers", "common", "misc", "processor", "wrapper",
})  # fmt: skip


def sources() -> Iterator[tuple[str, str]]:
    """Every module: its path below src/everstep, and its text."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), path.read_text()


def level(package: str) -> int:
    return next((at for at, packages in enumerate(LEVELS) if package in packages), -1)


def package_of(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def imported(tree: ast.AST, path: str) -> Iterator[str]:
    """Every module a file imports, wherever in it the import stands; not those for type checkers only."""
    skipped = {id(n) for node in ast.walk(tree) if _typing_only(node) for n in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            stem = ("everstep." + path.removesuffix(".py").replace("/", ".")).split(".")
            head = ".".join(stem[: len(stem) - node.level]) + "." if node.level else ""
            yield from (f"{head}{node.module or ''}.{alias.name}".replace("..", ".") for alias in node.names)


def _typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def wrong_imports(path: str, text: str) -> list[str]:
    """Imports that go against the direction, or beside it without being in the table."""
    ours, wrong = package_of(path), []
    for name in imported(ast.parse(text), path):
        parts = name.split(".")
        if parts[0] != "everstep" or len(parts) < 2 or (theirs := parts[1]) in (ours, "__version__"):
            continue
        up, here = level(theirs), level(ours)
        if up < 0 or here < 0 or up > here or (up == here and theirs not in WITHIN.get(ours, ())):
            wrong.append(f"{path}: {name}")
    return wrong


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(text: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def runs_code(path: str, text: str) -> list[str]:
    """Ways to turn data into code."""
    modules = {name.split(".")[0] for name in imported(ast.parse(text), path)}
    wrong = [f"{path}: import {name}" for name in sorted(modules & BANNED_MODULES)]
    for name, call in calls(text):
        shell = any(k.arg == "shell" and getattr(k.value, "value", True) is not False for k in call.keywords)
        if name in BANNED_CALLS or shell:
            wrong.append(f"{path}:{call.lineno}: {name}")
    return wrong


def changes_files(path: str, text: str) -> list[str]:
    """Calls that change files, outside store/."""
    if path.startswith("store/"):
        return []
    wrong = []
    for name, call in calls(text):
        if (
            name in CHANGING
            or name.startswith(("shutil.", "tempfile."))
            or name.rpartition(".")[2] in CHANGING_METHODS
            or (name.rpartition(".")[2] in ("open", "fdopen") and _opens_to_write(call))
        ):
            wrong.append(f"{path}:{call.lineno}: {name}")
    return wrong


def _opens_to_write(call: ast.Call) -> bool:
    """By mode or by flags; nobody is hurt by writing to os.devnull."""
    if call.args and dotted(call.args[0]) == "os.devnull":
        return False
    said = [a.value for a in [*call.args, *(k.value for k in call.keywords)] if isinstance(a, ast.Constant)]
    by_mode = any(isinstance(m, str) and set(m) <= set("rwxabt+") and set(m) & set("wxa+") for m in said)
    return by_mode or any(flag in ast.dump(call) for flag in WRITING_FLAGS)


def words(name: str) -> set[str]:
    spaced = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return set(spaced.replace("/", "_").replace(".", "_").split("_"))


def bad_names(path: str, text: str) -> list[str]:
    """Module and class names that say nothing."""
    classes = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    wrong = [path] if words(path.removesuffix(".py")) & FORBIDDEN else []
    return wrong + [f"{path}: {name}" for name in classes if words(name) & FORBIDDEN]


def too_long(path: str, text: str, lines_max: int) -> list[str]:
    count = len(text.splitlines())
    return [f"{path}: {count} lines"] if count > lines_max else []


def broken(rule: object, files: Iterable[tuple[str, str]]) -> list[str]:
    assert callable(rule)
    return [fault for path, text in files for fault in rule(path, text)]
