"""What trainer and keeper share: a directory of entries, and the bytes they name. It outlives either of the two.

offset      what
0           words, each on a cache line of its own and written by one side only
4096        the directory: `entries` places of 256 bytes, used in turn
data        bytes, given out in turn by the trainer's `Pen`

An entry is a record or a state. Its bytes come from the host and, on a GPU, from the device's own copies, which finish
later; each side writes its word last. An entry counts when both words say its sequence number: whatever dies before
that, nobody takes it for whole.
"""

from dataclasses import dataclass

from everstep import native
from everstep.errors import Damaged
from everstep.store import memory
from everstep.store.memory import Block

MAGIC = 0x676E697274737645  # "Evstring"
LINE = 64
HEADER_BYTES = 4096
ENTRY_BYTES = 256
EXTENTS_MAX = 10
AREAS_MAX = 8

VOID, UPDATE, REBASE, STATE = 0, 1, 2, 3
"""Kinds of entries. Nothing is in a void one. The next two are the log's; a state lies in an area, its entry says what
is there."""

W_MAGIC, W_ENTRIES, W_HEAD, W_KEEP, W_COMMITTED, W_MISSED, W_MEMORY = 0, 1, 2, 3, 4, 5, 6
"""The trainer's words: next sequence number, first that memory needs, newest step + 1, steps not recorded, and whether
there is a memory tier at all."""
W_RELEASED, W_STATE, W_ACKNOWLEDGED, W_WANTS_BASE, W_BASES, W_DROPPED = 8, 9, 10, 11, 12, 13
"""The keeper's: first sequence number the disk needs, its state, newest durable step + 1, and so on."""
W_COHORT, W_WRITERS = 7, 14
"""The trainer's again, of who began it: in which cohort, of how many writers."""
W_ASSIGNED, W_DONE = 16, 32
"""Per area: the entry whose state the keeper is to write as a base, and the one it has dealt with."""

E_SEQUENCE, E_KIND, E_STEP, E_AREA, E_COUNT, E_HOST, E_DEVICE, E_START, E_END, E_LOW, E_LATE, E_EXTENTS = range(12)


@dataclass(frozen=True, slots=True)
class Entry:
    """One place of the directory, read. `low`: of a state, the oldest step that a part of it is of."""

    sequence: int
    kind: int
    step: int
    area: int
    start: int
    end: int
    low: int
    late: int
    extents: tuple[tuple[int, int], ...]


class Ring:
    """The shared structure itself. Who may write which word is said above, and nothing here decides anything."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.entries = native.load(block.address + W_ENTRIES * LINE)
        self.data = HEADER_BYTES + self.entries * ENTRY_BYTES
        self.data_bytes = block.nbytes - self.data
        if native.load(block.address) != MAGIC or self.entries < 1 or self.data_bytes < LINE:
            raise Damaged("a shared block is not a ring of this version of everstep.")

    def word(self, at: int) -> int:
        return native.load(self.block.address + at * LINE)

    def say(self, at: int, value: int) -> None:
        native.store(self.block.address + at * LINE, value)

    def write(self, entry: Entry) -> None:
        """Put an entry into its place, not whole yet."""
        assert len(entry.extents) <= EXTENTS_MAX, "beyond its own place begins another's"
        at = self.place(entry.sequence)
        for word in (E_HOST, E_DEVICE):
            native.store(at + 8 * word, 0)
        numbers = (
            entry.sequence + 1, entry.kind, entry.step + 1, entry.area + 1, len(entry.extents), None, None, entry.start,
            entry.end, entry.low + 1, entry.late, *(number for extent in entry.extents for number in extent),
        )  # fmt: skip
        for word, number in enumerate(numbers):
            if number is not None:
                native.store(at + 8 * word, number)

    def place(self, sequence: int) -> int:
        """The address of an entry's place."""
        return self.block.address + HEADER_BYTES + sequence % self.entries * ENTRY_BYTES

    def vouch(self, sequence: int, word: int) -> None:
        """Say that the host's part, or the device's, is there."""
        native.store(self.place(sequence) + 8 * word, sequence + 1)

    def void(self, sequence: int) -> None:
        """An entry that was begun and given up: whoever reads on steps over it."""
        native.store(self.place(sequence) + 8 * E_KIND, VOID)
        self.vouch(sequence, E_DEVICE)
        self.vouch(sequence, E_HOST)

    def revoke(self, sequence: int) -> None:
        """An entry is not to be believed any more: its area is written anew. Who has not read it yet steps over it."""
        if native.load(self.place(sequence)) == sequence + 1:
            self.void(sequence)

    def copied(self, sequence: int) -> bool:
        """Whether the device's part of an entry is there."""
        at = self.place(sequence)
        return native.load(at + 8 * E_DEVICE) == sequence + 1 or native.load(at) != sequence + 1

    def whole(self, sequence: int) -> bool:
        at = self.place(sequence)
        return (
            native.load(at + 8 * E_HOST)
            == native.load(at + 8 * E_DEVICE)
            == native.load(at + 8 * E_SEQUENCE)
            == sequence + 1
        )

    def read(self, sequence: int) -> Entry:
        """An entry as its place says; Damaged when the place cannot be right."""
        at = self.place(sequence)
        words = [native.load(at + 8 * word) for word in range(ENTRY_BYTES // 8)]
        count = words[E_COUNT]
        if words[E_SEQUENCE] != sequence + 1 or count > EXTENTS_MAX:
            raise Damaged(f"entry {sequence} of the ring is not there.")
        extents = tuple(zip(words[E_EXTENTS::2], words[E_EXTENTS + 1 :: 2], strict=False))[:count]
        if any(offset + nbytes > self.data_bytes for offset, nbytes in extents):
            raise Damaged(f"entry {sequence} of the ring leaves it.")
        return Entry(
            sequence, words[E_KIND], words[E_STEP] - 1, words[E_AREA] - 1, words[E_START], words[E_END],
            words[E_LOW] - 1, words[E_LATE], extents,
        )  # fmt: skip

    def pieces(self, entry: Entry) -> list[memoryview]:
        """The bytes an entry names, in order; views, not copies."""
        return [self.part(offset, nbytes) for offset, nbytes in entry.extents]

    def part(self, offset: int, nbytes: int) -> memoryview:
        return self.block.memory[self.data + offset : self.data + offset + nbytes]

    def busy(self, area: int) -> bool:
        """Whether the keeper still reads this area."""
        return self.word(W_ASSIGNED + area) != self.word(W_DONE + area)


def create(data_bytes: int, *, entries: int = 4096, present: bool) -> Ring:
    """A new ring with room for so many bytes."""
    block = memory.create("ring", HEADER_BYTES + entries * ENTRY_BYTES + data_bytes, present=present)
    native.store(block.address + W_ENTRIES * LINE, entries)
    native.store(block.address + W_MAGIC * LINE, MAGIC)
    return Ring(block)
