"""What ranks on several hosts want alike is read from storage once; whoever is not answered reads for himself.

Every process here says that it is a host of its own.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from everstep import company
from everstep.recover import exchange
from everstep.recover.exchange import Reads, Shared, agree
from everstep.store.disk import OpenFile
from tests import worlds
from tests.cluster.programs import Program, differences
from tests.cluster.two import opened

WORLD, STEPS = 3, 4
KINDS = ("safetensors", "seg")
read: set[tuple[str, int]] = set()
"""Which bytes this process itself has read, of which files; what is read twice comes from the kernel's cache."""


def counted() -> None:
    real = OpenFile.read_into

    def read_into(self: OpenFile, offset: int, target: memoryview) -> None:
        if self._path.endswith(KINDS):
            read.update((self._path, at) for at in range(offset, offset + len(target)))
        real(self, offset, target)

    OpenFile.read_into = read_into  # type: ignore[method-assign]


def deaf(self: exchange.Exchange, *_: object) -> None:
    del self


def lying(self: exchange.Exchange, path: str, real: Any = exchange.Exchange._own) -> Any:
    source = real(self, path)

    class Liar:
        size = source.size

        def read_into(self, offset: int, target: memoryview) -> None:
            source.read_into(offset, target)
            target[len(target) // 2] ^= 1

        def expect(self, offset: int, length: int) -> None:
            source.expect(offset, length)

        def close(self) -> None:
            source.close()

    return Liar()


def work(rank: int, home: Path, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(home / "store"), WORLD), rank=rank, world_size=WORLD)
    program = Program("ddp")
    with opened(home / "run", program, base_log_bytes_max=1 << 30) as run:
        for at in range(run.resume(), STEPS):
            program.step(at)
            run.commit()
        run.wait(timeout=60)
    then = program.whole()
    counted()
    exchange.STRETCH_BYTES = 1024
    real_host, answer, own = company.host, exchange.Exchange._answer, exchange.Exchange._own
    for how in ("one host", "hosts", "silent", "lying", "gone"):
        if rank == 0:
            shutil.copytree(home / "run", home / how)
        dist.barrier()
        exchange.host = real_host if how == "one host" else lambda: f"host {rank}"
        exchange.ANSWER_SECONDS = 3.0 if how in ("silent", "gone") else 20.0
        exchange.Exchange._answer = deaf if how == "silent" and rank == 1 else answer  # type: ignore[method-assign]
        exchange.Exchange._own = lying if how == "lying" and rank == 1 else own  # type: ignore[method-assign]
        if how == "gone" and rank == 1:
            exchange.Exchange._serve = deaf  # type: ignore[method-assign]
        read.clear()
        again = Program("ddp", seed=rank)
        with opened(home / how, again) as run:
            assert run.resume() == STEPS
            assert run.ledger is not None
            assert run.ledger.records == STEPS
            wrong = differences(again.whole(), then)
        results.put((how, {kind: sum(path.endswith(kind) for path, _ in read) for kind in KINDS}, wrong))
        dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[dict[str, int], list[str]]]]:
    home = tmp_path_factory.mktemp("exchange")
    results: Any = worlds.context.SimpleQueue()
    worlds.spawn(work, (home, results), WORLD)
    told: dict[str, list[tuple[dict[str, int], list[str]]]] = {}
    while not results.empty():
        how, bytes_, wrong = results.get()
        told.setdefault(how, []).append((bytes_, wrong))
    return told


@pytest.mark.parametrize("how", ["one host", "hosts", "silent", "lying", "gone"])
def test_every_rank_has_the_same_bits(how: str, found: dict[str, list[tuple[dict[str, int], list[str]]]]) -> None:
    assert [wrong for _, wrong in found[how]] == [[]] * WORLD


def test_storage_is_read_once(found: dict[str, list[tuple[dict[str, int], list[str]]]]) -> None:
    for kind in KINDS:
        alone, together = (sum(bytes_[kind] for bytes_, _ in found[how]) for how in ("one host", "hosts"))
        assert alone == WORLD * together
        assert all(bytes_[kind] > 0 for bytes_, _ in found["hosts"])
        assert sum(bytes_[kind] for bytes_, _ in found["silent"]) > together


def test_files_are_passed_on_where_hosts_want_more_than_they_hold() -> None:
    everything, half = (100, 100), (50, 100)
    assert agree([Reads("a", {0: everything}), Reads("a", {0: everything})]) == Shared((), {})
    assert agree([Reads("a", {0: half}), Reads("b", {0: half})]) == Shared((), {})
    assert agree([Reads("a", {0: half}), Reads("a", {0: half}), Reads("b", {0: half})]) == Shared(
        (0, 1, 2), {0: [[0, 1], [2]]}
    )
    mixed = [Reads("a", {0: everything, 1: half}), Reads("b", {0: everything}), Reads("c", {1: half})]
    assert agree(mixed) == Shared((0, 1), {0: [[0], [1]]})
    many = [Reads(str(rank), {0: everything}) for rank in range(exchange.MEMBERS_MAX + 1)]
    assert agree(many) == Shared((), {})
