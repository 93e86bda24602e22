"""Ranks that hold the same write it together: each parameter, with its optimizer's state, is written by one of them.

Pure: every rank comes to the same answer from what all of them said.
"""

from collections.abc import Mapping, Sequence


def alike(said: Sequence[tuple[Sequence[int], str]]) -> list[tuple[int, int]]:
    """Of each rank, which it is among those that hold the same, and how many they are.

    A rank says which ranks have the same by contract (itself among them, or nobody), and what it holds, as a digest.
    Only those that say the same of each other count.
    """
    found = []
    for rank, (others, held) in enumerate(said):
        same = [
            other for other in sorted(set(others))
            if 0 <= other < len(said) and said[other][1] == held and rank in said[other][0]
        ]  # fmt: skip
        mutual = rank in same and all(sorted(set(said[other][0])) == sorted(set(others)) for other in same)
        found.append((same.index(rank), len(same)) if mutual else (0, 1))
    return found


def mine(sizes: Mapping[str, int], stepped: Sequence[Sequence[str]], at: int, count: int) -> frozenset[str]:
    """The parameters that number `at` of `count` writes, from the bytes of each and who is stepped by which optimizer.

    About as many bytes for each, and something of every optimizer: where one has fewer parameters than there are ranks,
    some ranks write the same.
    """
    parts = min([count, *(len(names) for names in stepped if names)])
    loads = [0] * parts
    found: list[set[str]] = [set() for _ in range(parts)]
    left = dict(sizes)
    for names in [*stepped, list(sizes)]:
        ordered = sorted((name for name in set(names) if name in left), key=lambda name: (-sizes[name], name))
        empty = set(range(parts)) if len(ordered) >= parts else set()
        for name in ordered:
            part = min(empty or range(parts), key=lambda part: (loads[part], part))
            empty.discard(part)
            found[part].add(name)
            loads[part] += left.pop(name)
    return frozenset(found[at % parts])
