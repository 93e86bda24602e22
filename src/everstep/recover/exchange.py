"""What ranks on several hosts want alike is read from storage once, and passed on.

A stretch of a file belongs to one of the hosts whose ranks want the file. Ranks there read it themselves; the others
ask one of them, which reads it, and has it in the kernel's cache for the next who asks. Questions and bytes go through
torch's gloo, between these ranks alone, and what arrives is proved as what is read is. Who is not answered reads for
himself: nothing depends on this but time.
"""

import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import torch
from torch import distributed

from everstep.company import Company, Together, host, meet
from everstep.store import names
from everstep.store.disk import Disk, Files, Source

STRETCH_BYTES = 16 << 20
MEMBERS_MAX = 256
"""Each of them has a line to every other; where more ranks resume, each reads for itself."""
CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 20.0
ANSWERING = 4

READ, EXPECT, BYE = range(3)
QUESTION = struct.Struct("<qqqq64s")
"""What is asked; offset, length, the tag that the answer has, and the file."""
ASKING = 1
"""The tag of questions. An answer's is that of the open file it is for."""


class Reads(msgspec.Struct, frozen=True, array_like=True):
    """What a rank is about to read: of each writer's files so many bytes, of so many that they hold."""

    host: str
    wanted: dict[int, tuple[int, int]]


class Shared(msgspec.Struct, frozen=True, array_like=True):
    """The ranks that pass on, and the writers whose files they do it with: of each host, the ranks that want them."""

    members: tuple[int, ...]
    files: dict[int, list[list[int]]]


def agree(said: Sequence[Reads]) -> Shared:
    """A writer's files are passed on where hosts together want more of them than they hold."""
    files: dict[int, list[list[int]]] = {}
    for writer in sorted({writer for reads in said for writer in reads.wanted}):
        hosts: dict[str, list[int]] = {}
        for rank, reads in enumerate(said):
            if writer in reads.wanted:
                hosts.setdefault(reads.host, []).append(rank)
        held = max(said[rank].wanted[writer][1] for ranks in hosts.values() for rank in ranks)
        wanted = (sum(said[rank].wanted[writer][0] for rank in ranks) for ranks in hosts.values())
        if sum(min(held, bytes_) for bytes_ in wanted) > held:
            files[writer] = list(hosts.values())
    members = tuple(sorted({rank for hosts in files.values() for ranks in hosts for rank in ranks}))
    return Shared(members, files) if len(members) <= MEMBERS_MAX else Shared((), {})


@contextmanager
def passed_on(disk: Disk, ranks: Company, wanted: Mapping[int, tuple[int, int]]) -> Iterator[Files]:
    """The run's files, as these ranks read them together. All of them must have read what they want when this ends."""
    exchange = None
    if isinstance(ranks, Together) and distributed.is_gloo_available():
        mine = msgspec.json.encode(Reads(host(), dict(wanted))).decode()
        shared = msgspec.json.decode(meet(ranks, "reading", _agreed, mine), type=Shared)
        if ranks.rank in shared.members:
            with suppress(RuntimeError):  # no line between the hosts: each reads for itself
                exchange = Exchange(disk, ranks, shared)
    try:
        yield disk if exchange is None else exchange
    finally:
        if exchange is not None:
            exchange.close()


def _agreed(said: list[str]) -> str:
    return msgspec.json.encode(agree([msgspec.json.decode(text, type=Reads) for text in said])).decode()


class Exchange:
    """`Files` of which some are read together with others. `direct` are the same files, read by this rank alone."""

    def __init__(self, disk: Disk, ranks: Together, shared: Shared) -> None:
        self.direct = disk
        self._rank, self._members, self._files = ranks.rank, shared.members, shared.files
        self._tags = count(ASKING + 1)
        self._silent: set[int] = set()
        self._open: dict[str, Source] = {}
        self._opening = threading.Lock()
        self._group: Any = distributed.ProcessGroupGloo(
            ranks.part("exchange"), self._members.index(ranks.rank), len(self._members),
            timedelta(seconds=CONNECT_SECONDS),
        )  # fmt: skip
        self._server = threading.Thread(target=self._serve, name="everstep-exchange", daemon=True)
        self._server.start()

    def source(self, path: str) -> Source:
        found = self.direct.source(path)
        writer = self._writer(path)
        return found if writer is None else Passed(found, path, self, self._files[writer], next(self._tags))

    def owner(self, hosts: Sequence[Sequence[int]], offset: int) -> int | None:
        """Whom to ask for what lies at this offset; None to read it here."""
        at, turn = offset // STRETCH_BYTES % len(hosts), offset // STRETCH_BYTES // len(hosts)
        rank = hosts[at][turn % len(hosts[at])]
        return None if self._rank in hosts[at] or rank in self._silent else rank

    def ask(self, rank: int, path: str, offset: int, target: memoryview, tag: int) -> bool:
        """Have bytes read on another host; False if it does not do it."""
        at, answered = self._members.index(rank), torch.empty(1, dtype=torch.int64)
        try:
            coming = self._group.recv([answered], at, tag)
            self._send(at, READ, offset, len(target), tag, path)
            coming.wait(timedelta(seconds=ANSWER_SECONDS))
            if answered.item() != len(target):
                return False
            arrived = torch.empty(len(target), dtype=torch.uint8)  # not the target: who knows what comes too late
            self._group.recv([arrived], at, tag).wait(timedelta(seconds=ANSWER_SECONDS))
        except RuntimeError:
            self._silent.add(rank)
            return False
        torch.frombuffer(target, dtype=torch.uint8).copy_(arrived)
        return True

    def tell(self, rank: int, path: str, offset: int, length: int) -> None:
        """Let another host's disk begin."""
        try:
            self._send(self._members.index(rank), EXPECT, offset, length, 0, path)
        except RuntimeError:
            self._silent.add(rank)

    def close(self) -> None:
        """Nobody here asks any more; the others are answered until they say so, too."""
        for at, rank in enumerate(self._members):
            if rank != self._rank:
                with suppress(RuntimeError):
                    self._send(at, BYE, 0, 0, 0, "")
        self._server.join(ANSWER_SECONDS)
        for source in self._open.values():
            source.close()

    def _send(self, at: int, kind: int, offset: int, length: int, tag: int, path: str) -> None:
        question = bytearray(QUESTION.pack(kind, offset, length, tag, path.encode()))
        sent = self._group.send([torch.frombuffer(question, dtype=torch.uint8)], at, ASKING)
        sent.wait(timedelta(seconds=ANSWER_SECONDS))

    def _serve(self) -> None:
        """Answer until everyone has said that nothing more will be asked, or a line is broken."""
        listening = len(self._members) - 1
        with ThreadPoolExecutor(ANSWERING, "everstep-answer") as pool, suppress(RuntimeError):
            while listening:
                question = torch.zeros(QUESTION.size, dtype=torch.uint8)
                asked = self._group.recv_anysource([question], ASKING)
                asked.wait(timedelta(days=1))
                kind, offset, length, tag, path = QUESTION.unpack(bytes(question.numpy()))
                if kind == BYE:
                    listening -= 1
                else:
                    known = path.rstrip(b"\0").decode("ascii", "replace")
                    pool.submit(self._answer, asked._source_rank(), kind, offset, length, tag, known)  # noqa: SLF001

    def _answer(self, asking: int, kind: int, offset: int, length: int, tag: int, path: str) -> None:
        try:
            source = self._own(path)
            if kind == EXPECT:
                source.expect(offset, length)
                return
            data = bytearray(min(length, STRETCH_BYTES))
            source.read_into(offset, memoryview(data))
        except (OSError, EOFError, ValueError):
            data = bytearray()  # who asked reads for himself, and finds out what is wrong
        with suppress(RuntimeError):
            self._group.send([torch.tensor([len(data)])], asking, tag).wait()
            if data:
                self._group.send([torch.frombuffer(data, dtype=torch.uint8)], asking, tag).wait()

    def _own(self, path: str) -> Source:
        """A file of a run that is being passed on, and nothing else."""
        with self._opening:
            if path not in self._open:
                if self._writer(path) is None or names.epoch_of(names.short(path)) is None:
                    raise ValueError(path)
                self._open[path] = self.direct.source(path)
            return self._open[path]

    def _writer(self, path: str) -> int | None:
        folder, _, _ = path.partition("/")
        return next((writer for writer in names.ranks([folder]) if writer in self._files), None)


class Passed:
    """`Source` of a file that several hosts read. Used by one thread at a time."""

    def __init__(self, own: Source, path: str, exchange: Exchange, hosts: Sequence[Sequence[int]], tag: int) -> None:
        self._own, self._path, self._exchange, self._hosts, self._tag = own, path, exchange, hosts, tag
        self.size = own.size

    def read(self, offset: int, length: int) -> bytes:
        return self._own.read(offset, length)

    def read_into(self, offset: int, target: memoryview) -> None:
        for start, length in _cut(offset, len(target)):
            part, target = target[:length], target[length:]
            owner = self._exchange.owner(self._hosts, start)
            if owner is None or not self._exchange.ask(owner, self._path, start, part, self._tag):
                self._own.read_into(start, part)

    def expect(self, offset: int, length: int) -> None:
        for start, step in _cut(offset, length):
            owner = self._exchange.owner(self._hosts, start)
            if owner is None:
                self._own.expect(start, step)
            else:
                self._exchange.tell(owner, self._path, start, step)

    def close(self) -> None:
        self._own.close()


def _cut(offset: int, length: int) -> Iterator[tuple[int, int]]:
    """A stretch of a file in parts that have one owner each."""
    end = offset + length
    while offset < end:
        step = min(end - offset, STRETCH_BYTES - offset % STRETCH_BYTES)
        yield offset, step
        offset += step
