"""What a program has of the tensors that writers hold together, and where in it a part of them would lie."""

from dataclasses import dataclass, field

import torch

from everstep.capture.shards import like, local
from everstep.layout import boxes
from everstep.recover.pages import in_huge_pages
from everstep.recover.parts import Move, view
from everstep.types import Box, Local, boxed


@dataclass(slots=True)
class Wanted:
    """A parameter of the program: which boxes of what are here, and what of them nobody has brought yet."""

    name: str
    parameter: torch.Tensor
    held: Local
    absent: list[Box]
    origins: list[str] = field(default_factory=list)
    rooms: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)
    """Memory for optimizer state, by optimizer and by the state's name: it is the program's once something is in it."""

    def meets(self, theirs: Local) -> bool:
        """Whether a writer's tensor has something of what is absent, or there is nothing here to be absent."""
        if not self.held.pieces:
            return True
        return any(boxes.intersect(box, piece.box) for box in self.absent for piece in theirs.pieces)

    def take(self, theirs: Local) -> list[Move]:
        """What a writer's tensor has of what nobody has brought yet; from now on it is not absent."""
        moves, self.absent = self._moves(theirs)
        return moves

    def moves(self, theirs: Local) -> list[Move]:
        """What `take` will say."""
        return self._moves(theirs)[0]

    def _moves(self, theirs: Local) -> tuple[list[Move], list[Box]]:
        """What a writer's tensor has of what is absent, and what is absent then."""
        moves, left = [], self.absent
        for source in theirs.pieces:
            found = [
                Move(source, target, part)
                for absent in left if (common := boxes.intersect(absent, source.box)) is not None
                for target in self.held.pieces if (part := boxes.intersect(common, target.box)) is not None
            ]  # fmt: skip
            if found:
                left = [rest for absent in left for rest in boxes.subtract(absent, source.box)]
                moves += found
        return moves, left

    def place(self, tensor: torch.Tensor, theirs: Local) -> torch.Tensor | None:
        """Where in `tensor`, which lies as the parameter does, all of a writer's tensor belongs: a contiguous part of
        host memory that nobody has filled yet; None if there is none."""
        if tensor.device.type != "cpu" or any(boxes.missing(piece.box, self.absent) for piece in theirs.pieces):
            return None
        if theirs == self.held:
            return tensor if tensor.is_contiguous() else None
        if len(theirs.pieces) != 1 or theirs != boxed(theirs.logical, theirs.logical_shape, theirs.pieces[0].box):
            return None
        box = theirs.pieces[0].box
        for piece in self.held.pieces:
            if boxes.intersect(piece.box, box) == box:
                part = view(tensor, self.held, piece)[boxes.slices(box, piece.box)]
                return part if part.is_contiguous() else None
        return None

    def forget(self) -> None:
        """As if nobody had brought anything."""
        self.absent, self.origins = [piece.box for piece in self.held.pieces], []

    def room(self, key: str, state: str, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a piece of optimizer state that lies as the parameter does; zeros where nothing will be."""
        known = self.rooms.get((key, state))
        if known is None or local(known).dtype != dtype:
            own = local(self.parameter)
            full = sum(boxes.volume(piece.box) for piece in self.held.pieces) == own.numel()
            part = in_huge_pages(torch.empty_like(own, dtype=dtype, requires_grad=False))
            known = self.rooms[key, state] = like(self.parameter, part if full else part.zero_())
        return known
