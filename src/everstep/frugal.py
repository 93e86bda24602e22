"""A bound on what decoding JSON can cost, known before it is decoded.

A list of empty lists takes 25 times its text in memory; an honest head or index takes 4. Every value but a tree's
first follows one of `,` `[` `{`, so counting these three bytes bounds the number of values.
"""

from everstep.errors import Damaged

VALUE_BYTES = 64
"""What one value costs in memory, an empty container included."""
SHARE = 16
ALLOWANCE_BYTES = 32 << 20


def refuse_bomb(text: bytes | bytearray | memoryview, *, name: str) -> None:
    """Raise Damaged when `text` has so many values that decoding it would cost far more memory than reading it."""
    data = bytes(text)
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values * VALUE_BYTES > SHARE * len(data) + ALLOWANCE_BYTES:
        raise Damaged(f"{name}: {values} values in {len(data)} bytes of JSON are more than anything of ours holds.")
