"""How an axis is cut among ranks: where each one's range begins, and how long it is."""

from dataclasses import dataclass
from typing import Protocol

from everstep.errors import Misdescribed

Range = tuple[int, int]


class Split(Protocol):
    """A value: what it cuts is remembered."""

    def __hash__(self) -> int: ...

    def cut(self, extent: int, count: int) -> list[Range]:
        """A range for each of `count` ranks."""


@dataclass(frozen=True, slots=True)
class Even:
    """As even as can be; the first ones get what is left over."""

    def cut(self, extent: int, count: int) -> list[Range]:
        share, more = divmod(extent, count)
        return [(at * share + min(at, more), share + (at < more)) for at in range(count)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """As torch.chunk, FSDP2 and DTensor cut: all but the last ones get the same, rounded up."""

    def cut(self, extent: int, count: int) -> list[Range]:
        share = -(-extent // count)
        return [(min(at * share, extent), max(0, min(share, extent - at * share))) for at in range(count)]


@dataclass(frozen=True, slots=True)
class Sizes:
    """So many for each rank."""

    sizes: tuple[int, ...]

    def cut(self, extent: int, count: int) -> list[Range]:
        if len(self.sizes) != count or sum(self.sizes) != extent:
            raise Misdescribed(f"sizes {self.sizes} do not cut an axis of {extent} among {count} ranks.")
        return [(sum(self.sizes[:at]), size) for at, size in enumerate(self.sizes)]


@dataclass(frozen=True, slots=True)
class Heads:
    """Whole heads. Where there are fewer heads than ranks, neighbours hold the same one."""

    heads: int

    def cut(self, extent: int, count: int) -> list[Range]:
        if self.heads < 1 or extent % self.heads:
            raise Misdescribed(f"an axis of {extent} is not {self.heads} heads.")
        width = extent // self.heads
        if self.heads >= count:
            return [(start * width, length * width) for start, length in Even().cut(self.heads, count)]
        if count % self.heads:
            raise Misdescribed(f"{self.heads} heads cannot be repeated among {count} ranks.")
        return [(at * self.heads // count * width, width) for at in range(count)]
