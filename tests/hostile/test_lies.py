"""Files that lie with good checksums: refused by name, before memory is touched, and nothing is imported."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import CannotReplay, Damaged, EverstepError, Mismatch, ReplayDiffers
from tests.hostile.forge import Pieces, with_base, with_manifest, with_records
from tests.hostile.tiny import Files, Memory, prove, write_files


def restore(files: Files, where: Path, step: int | None = None) -> everstep.Restored:
    return everstep.restore(write_files(files, where / "run"), step)


def test_forging_without_a_change_is_no_change(runs: tuple[Files, Files], tmp_path: Path) -> None:
    same = with_records(with_base(runs[0], 6, 2, lambda _index: None), 2, 1, lambda _step, pieces: pieces)
    assert prove(Memory(same)) == prove(Memory(runs[0]))
    assert restore(same, tmp_path).step == 9


def test_a_wrong_gradient_with_a_good_checksum_does_not_replay(runs: tuple[Files, Files], tmp_path: Path) -> None:
    def lie(step: int, pieces: Pieces) -> Pieces:
        head, [blobs] = pieces
        return (head, [bytes([blobs[0] ^ 1]) + blobs[1:]]) if step == 8 else pieces

    with pytest.raises(ReplayDiffers, match="step 8"):
        restore(with_records(runs[0], 2, 1, lie), tmp_path)


def test_a_wrong_learning_rate_with_a_good_checksum_does_not_replay(runs: tuple[Files, Files], tmp_path: Path) -> None:
    def lie(index: dict[str, Any]) -> None:
        index["content"]["optimizers"][0]["groups"][0]["hyper"]["lr"] = 0.2

    with pytest.raises(ReplayDiffers):
        restore(with_base(runs[0], 6, 2, lie), tmp_path)


def lie_in_record(key: str, value: Any) -> Any:
    def lie(step: int, pieces: Pieces) -> Pieces:
        head, blobs = pieces
        table = head["blobs"]
        if key == "optimizer":
            head["updates"][0]["optimizer"] = value
        elif key == "name":
            table[0][0] = f"gradient/0/{value}"
        else:  # a smaller tensor in the place of the gradient; what is left over is a second blob
            count, rest = value, 6 - value
            table[0] = ["gradient/0/weight", "F32", [count], [[0], [count]], 4 * count]
            table.insert(1, ["rest", "U8", [64 - 4 * count - 4 * rest], [[0], [64 - 4 * count - 4 * rest]], 0])
            table.pop(1)
        return head, blobs

    return lie


RECORDS = [("optimizer", "other"), ("name", "no.such.parameter"), ("shape", 1), ("shape", 5)]


@pytest.mark.parametrize("key, value", RECORDS)
def test_a_gradient_that_fits_no_parameter_never_reaches_a_kernel(
    runs: tuple[Files, Files], tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(Mismatch):
        restore(with_records(runs[0], 2, 1, lie_in_record(key, value)), tmp_path)


@pytest.mark.parametrize("fused", [False, True])
def test_optimizer_state_smaller_than_its_parameter_never_reaches_a_kernel(
    runs: tuple[Files, Files], tmp_path: Path, fused: bool
) -> None:
    """Fused kernels, torch's too, trust sizes: they would write beyond the memory of the small tensor."""

    def lie(index: dict[str, Any]) -> None:
        content = index["content"]
        content["optimizers"][0]["groups"][0]["hyper"]["fused"] = fused
        content["optimizers"][0]["state"]["weight"]["exp_avg"] = {"$": "tensor", "v": "optimizer/main/bias/exp_avg"}

    with pytest.raises(Damaged, match="shape"):
        restore(with_base(runs[0], 6, 2, lie), tmp_path)


INDEX_LIES: list[tuple[str, Any]] = [
    ("step", 7), ("epoch", 1), ("writer", 1), ("nbytes", -1), ("nbytes", 1 << 62), ("header_bytes", -8),
    ("header_bytes", 1 << 62), ("header_bytes", 0), ("tensors", []), ("tensors", None), ("content", {}),
    ("run", 5), ("header_checksum", ""),
]  # fmt: skip


@pytest.mark.parametrize("key, value", INDEX_LIES)
def test_an_index_that_cannot_be_right_is_damage(runs: tuple[Files, Files], key: str, value: Any) -> None:
    with pytest.raises(Damaged):
        prove(Memory(with_base(runs[0], 6, 2, lambda index: index.update({key: value}))))


HUGE = 1 << 61
TENSOR_LIES: list[tuple[int, Any]] = [
    (0, "model/bias"), (1, "F33"), (1, "C128"), (2, [HUGE]), (2, [3, 2, 0]), (2, [-3, -2]), (2, [1] * 70),
    (3, [[0, 0], [2, 4]]), (3, [[-1, 0], [2, 3]]), (3, [[0], [6]]), (4, HUGE), (4, -1), (4, 10**30), (4, 1.5), (2, "x"),
]  # fmt: skip


@pytest.mark.parametrize("field, value", TENSOR_LIES)
def test_a_tensor_that_cannot_be_right_is_damage(runs: tuple[Files, Files], field: int, value: Any) -> None:
    def lie(index: dict[str, Any]) -> None:
        for stored in index["tensors"]:
            if stored["tensor"][0] == "model/weight":
                stored["tensor"][field] = value

    with pytest.raises(Damaged):
        prove(Memory(with_base(runs[0], 6, 2, lie)))


@pytest.mark.parametrize("shape", [[1 << 70, 0], [1 << 40, 1 << 40, 0]], ids=str)
def test_an_empty_tensor_of_impossible_shape_is_damage(runs: tuple[Files, Files], shape: list[int]) -> None:
    def lie(index: dict[str, Any]) -> None:
        last = index["tensors"][-1]
        empty = ["none", "F32", shape, [[0] * len(shape), shape], 0]
        end = last["offset"] + last["tensor"][4]
        index["tensors"].append({"tensor": empty, "offset": end, "digest": "0" * 32})

    with pytest.raises(Damaged, match="too large"):
        prove(Memory(with_base(runs[0], 6, 2, lie)))


MANIFEST_LIES: list[tuple[str, int, str, Any]] = [
    (part, -1, key, value)
    for part, keys in (
        ("segments", ("epoch", "sequence", "after_step", "nbytes", "last_step")), ("bases", ("step", "epoch")),
        ("terms", ("epoch", "from_step", "chain")),
    )
    for key in keys for value in (-1, HUGE, 1 << 80, None, "1", 0.5)
]  # fmt: skip


@pytest.mark.parametrize("part, at, key, value", MANIFEST_LIES)
def test_a_manifest_that_lies_raises_only_our_errors(
    runs: tuple[Files, Files], part: str, at: int, key: str, value: Any
) -> None:
    def lie(plain: dict[str, Any]) -> None:
        plain[part][at][key] = value

    with contextlib.suppress(EverstepError):
        prove(Memory(with_manifest(runs[0], lie)))


@pytest.mark.parametrize("run", ["", "zz" * 16, "../../../../etc", "0" * 31, "\u0660" * 32, "a" * 32 + "\n"])
def test_a_run_id_is_32_hex_digits(runs: tuple[Files, Files], run: str) -> None:
    with pytest.raises(Damaged):
        prove(Memory(with_manifest(runs[0], lambda plain: plain.update(run=run))))


def test_a_manifest_of_very_many_terms_is_read_in_linear_time(runs: tuple[Files, Files]) -> None:
    """100,000 terms in one line of descent; looking each one up in a list took 10^10 comparisons."""

    def lie(plain: dict[str, Any]) -> None:
        first = dict(plain["terms"][0])
        plain["segments"], plain["bases"] = [], []
        plain["terms"] = [first | {"epoch": at, "parent": at - 1, "from_step": 0} for at in range(1, 100_001)]

    with pytest.raises(EverstepError):
        prove(Memory(with_manifest(runs[0], lie)))


CLASSES = ["canary.Optimizer", "os.system", "torch.optim.lbfgs.LBFGS", "torch.optim.Optimizer", "builtins.exec", ""]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_name_of_a_class_imports_nothing(runs: tuple[Files, Files], tmp_path: Path, kind: str) -> None:
    def lie(index: dict[str, Any]) -> None:
        index["content"]["optimizers"][0]["kind"] = kind

    (tmp_path / "canary.py").write_text("raise SystemExit('imported')")
    seen: list[str] = []
    listening = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event in ("import", "exec", "os.system", "subprocess.Popen", "compile"):
            seen.append(f"{event} {arguments[0]}")

    assert callable(everstep.restore)  # imported when first used: now, not while someone listens
    sys.addaudithook(hear)
    sys.path.insert(0, str(tmp_path))
    files = with_base(runs[0], 6, 2, lie)
    try:
        with pytest.raises(CannotReplay):
            restore(files, tmp_path)
    finally:
        listening = False
        sys.path.remove(str(tmp_path))
    assert "canary" not in sys.modules
    assert not [event for event in seen if kind.partition(".")[0] in ("canary",) and "canary" in event]
    assert not [event for event in seen if event.startswith(("exec", "os.system", "subprocess", "compile"))]
