"""Results of several runs as one: a later row replaces the earlier one of the same case and metric."""

from typing import Any


def merged(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """`old` with the rows of `new` in it. Refused where the two were not measured on the same ground."""
    if old is None:
        return new
    for ground in ("bench", "quick", "machine", "versions"):
        if old[ground] != new[ground]:
            raise SystemExit(
                f"these results cannot be merged: {ground} was {old[ground]} and is {new[ground]}. Choose another file."
            )
    rows = {(row["case"], row["metric"]): row for row in old["rows"]}
    rows |= {(row["case"], row["metric"]): row for row in new["rows"]}
    return {**new, "rows": list(rows.values())}
