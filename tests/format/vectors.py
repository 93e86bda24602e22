"""The inputs of the test vectors in docs/FORMAT.md, and the vectors as the page gives them."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from everstep.codec import body
from everstep.dcp import record
from everstep.log import frame
from everstep.native import reference
from everstep.store import base, document, witness
from everstep.store.manifest import Identity
from everstep.types import Pair, Tensor, whole
from tests.format import make_golden_parts

PAGE = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text
RUN = bytes(range(16))
TENSORS = {
    "F32, empty": torch.empty(0),
    "F32 [0.0]": torch.zeros(1),
    "F32 [0.0, 0.0]": torch.zeros(2),
    "F32 [1.0, 2.0, 3.0]": torch.tensor([1.0, 2.0, 3.0]),
    "F64 [1.0]": torch.tensor([1.0], dtype=torch.float64),
    "BF16 [1.0, -2.0]": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
    "BOOL [true, false, true]": torch.tensor([True, False, True]),
    "I8 [-1]": torch.tensor([-1], dtype=torch.int8),
    "I64 [0 to 999]": torch.arange(1000),
    "C64 [1+2i]": torch.tensor([1 + 2j], dtype=torch.complex64),
    "C128 [1+2i]": torch.tensor([1 + 2j], dtype=torch.complex128),
}
SETS: dict[str, Callable[[], list[tuple[str, Pair]]]] = {
    "c0": list,
    "c1": lambda: [("model/w", reference.digest(TENSORS["F32 [1.0, 2.0, 3.0]"]))],
    "c2": lambda: [("model/w", reference.digest(TENSORS["F32 [1.0, 2.0, 3.0]"])), ("model/b", (0, 0))],
}
GRADIENT = Tensor("gradient/0/w", "F32", (3,), whole((3,)), 12)
UPDATE = body.Update("main", [{"lr": 0.5}])
HEAD = body.Head((UPDATE,), {}, {"state/x": {"$": "tuple", "v": [1, 2]}}, "0" * 32, None, (GRADIENT,))
BLOB = bytes.fromhex("0000803f0000004000004040")


def made() -> dict[str, bytes]:
    """What the code writes for the inputs that the page names."""
    head, seed = frame.pack_head(0, RUN, 1, 0, 0, 0)
    update, chain = frame.pack(frame.UPDATE, 1, 1, 0, [b"everstep"], chain=seed)
    rebase, _ = frame.pack(frame.REBASE, 2, 1, 1, [bytes(range(65))], chain=chain)
    stored = [
        base.Stored(Tensor("w", "F32", (2,), whole((2,)), 8), 0, ""),
        base.Stored(Tensor("z", "C64", (1,), whole((1,)), 8), 8, ""),
    ]
    return {
        "segment-head": head,
        "record-update": b"".join(update),
        "record-rebase": b"".join(rebase),
        "body": body.head_piece(HEAD) + BLOB + body.padding(BLOB),
        "safetensors-header": base.safetensors_header(stored, 3),
        "witness": witness.pack(1, ((0, 4), (6, 7))),
        "witness-none": witness.pack(2, ()),
    }


def run_json() -> bytes:
    return document.pack("run", Identity(RUN.hex(), "2026-01-01T00:00:00+00:00", "0.1.0"))


def on_the_page() -> dict[str, bytes]:
    """The hex blocks of docs/FORMAT.md by name."""
    found = re.findall(r"^```hex (\S+)\n([0-9a-f\n]+)```$", PAGE(), re.MULTILINE)
    return {name: bytes.fromhex(text) for name, text in found}


def texts() -> dict[str, bytes]:
    """What the code writes where the page shows text."""
    file = record.Sealed("__0_3fa2c1d09b7e_0.distcp", 8, (record.checksum(b"everstep"),))
    entry = record.Entry("w", "float32", (2,), ((whole((2,)), record.Place(0, 0, 8)),))
    said = record.Record("2.13.0", record.BLOCK_BYTES, (file,), (entry,), {}, {"w": ("w",)})
    return {
        "run.json": run_json(),
        "layout": msgspec.json.encode(make_golden_parts.spec(2).locals(make_golden_parts.LOGICAL, 1)),
        "dcp-record": record.pack(said),
    }


def texts_on_the_page() -> dict[str, bytes]:
    found = re.findall(r"^```text (\S+)\n(.+)\n```$", PAGE(), re.MULTILINE)
    return {name: text.encode() for name, text in found}


def run_json_on_the_page() -> bytes:
    return texts_on_the_page()["run.json"]


def digests_on_the_page() -> dict[str, str]:
    return dict(re.findall(r"^\| (.+?) \| `([0-9a-f]{32})` \|$", PAGE(), re.MULTILINE))
