"""How much of the host's memory this process may count on: ranks of one host all take theirs at the same time."""

from everstep.company import Company, meet
from everstep.store.spare import Spare, spare


def room(ranks: Company) -> int:
    """Bytes. What several ranks see of the same memory is shared out; before any of them has taken some."""
    mine = spare()
    if ranks.world == 1:
        return mine.nbytes
    return shared(mine, meet(ranks, "spare", "\n".join, f"{mine.nbytes} {mine.whose}"))


def shared(mine: Spare, said: str) -> int:
    """This rank's part, where every rank `said` on a line what it sees and whose."""
    found = [line.split(" ", 1) for line in said.splitlines()]
    same = [int(nbytes) for nbytes, whose in found if whose == mine.whose]
    return min(same) // len(same)
