"""A reader of pickles that imports nothing and calls nothing that the file names.

The operations are `pickletools.genops`'s, which only splits the file into them; what they build are the values of
`inert`, by the closed table of `known`. Time and memory are bounded by the file's length. Whatever cannot be a pickle
raises Damaged with the byte it was found at.
"""

import pickletools
from collections.abc import Callable, Iterator, Sized
from types import MappingProxyType

from everstep.errors import Damaged, Unsupported
from everstep.foreign import known
from everstep.foreign.inert import ElementType, Global, Record, StorageRef, Unknown

PICKLE_BYTES_MAX = 1 << 30
OPERATIONS_FREE = 50_000
COPIED_FREE = 1 << 20
MARKS_MAX = 500
KEY_ITEMS_MAX = 64
KEY_BITS_MAX = 64
NAME_CHARACTERS_MAX = 1000

NAMED = {bool, int, float, complex, str, bytes, type(None)}
PUSHED = frozenset(
    f"{prefix}{name}" for name in ("INT", "UNICODE", "STRING", "BYTES") for prefix in ("", "BIN", "SHORT_BIN")
) | frozenset({
    "LONG", "LONG1", "LONG4", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "BINUNICODE8", "BINBYTES8", "BYTEARRAY8",
})  # fmt: skip
"""Operations that push their own argument."""
CONSTANTS = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()})
EMPTY: MappingProxyType[str, Callable[[], object]] = MappingProxyType(
    {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
)


def loads(content: bytes, where: str, offset: int = 0) -> object:
    """The value that the pickle describes. `where` names the file and `offset` the pickle's place in it, for errors."""
    if len(content) > PICKLE_BYTES_MAX:
        raise Unsupported(f"{where}: a pickle of {len(content)} bytes; at most {PICKLE_BYTES_MAX} are read.")
    machine, at = Machine(COPIED_FREE + 2 * len(content)), 0
    operations_max = OPERATIONS_FREE + len(content) * 3 // 4
    try:
        for count, (operation, argument, position) in enumerate(pickletools.genops(content)):
            at = position or 0
            if count > operations_max:
                raise ValueError("more operations than a file of this length needs")
            if machine.step(operation.name, argument):
                return machine.only()
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError) as wrong:
        said = f"no value {wrong}" if isinstance(wrong, KeyError) else str(wrong)[:200]
        raise Damaged(
            f"{where}: the pickle is damaged at byte {offset + at} ({said}). Nothing in it can be trusted; "
            f"use another copy of the file."
        ) from wrong
    raise Damaged(f"{where}: the pickle at byte {offset} has no end. Use another copy of the file.")


class Machine:
    """The pickle's stack and memo. What calls may copy is counted: one list could be copied by every few bytes."""

    def __init__(self, copied_max: int) -> None:
        self._copies_left = copied_max
        self._stack: list[object] = []
        self._below: list[list[object]] = []
        self._memo: dict[int, object] = {}

    def step(self, name: str, argument: object) -> bool:
        """Take one operation; True at the end of the pickle."""
        if name in PUSHED:
            self._stack.append(argument)
        elif name in CONSTANTS:
            self._stack.append(CONSTANTS[name])
        elif name in EMPTY:
            self._stack.append(EMPTY[name]())
        elif name in OPERATIONS:
            OPERATIONS[name](self, argument)
        elif name == "STOP":
            return True
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"the operation {name} has no place in a checkpoint")
        return False

    def only(self) -> object:
        if self._below or len(self._stack) != 1:
            raise ValueError("the stack does not hold one value at the end")
        return self._stack[0]

    def mark(self, _: object) -> None:
        if len(self._below) >= MARKS_MAX:
            raise ValueError(f"nested deeper than {MARKS_MAX}")
        self._below.append(self._stack)
        self._stack = []

    def since_mark(self) -> list[object]:
        found, self._stack = self._stack, self._below.pop()
        return found

    def pop(self, _: object) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self.since_mark()

    def duplicate(self, _: object) -> None:
        self._stack.append(self._stack[-1])

    def remember(self, argument: object) -> None:
        self._memo[len(self._memo) if argument is None else _index(argument)] = self._stack[-1]

    def recall(self, argument: object) -> None:
        self._stack.append(self._memo[_index(argument)])

    def pop_mark(self, _: object) -> None:
        self.since_mark()

    def tuple_marked(self, _: object) -> None:
        values = tuple(self.since_mark())
        self._stack.append(values)

    def tuple_1(self, _: object) -> None:
        self._stack[-1:] = [(self._stack[-1],)]

    def tuple_2(self, _: object) -> None:
        self._stack[-2:] = [(self._stack[-2], self._stack[-1])]

    def tuple_3(self, _: object) -> None:
        self._stack[-3:] = [(self._stack[-3], self._stack[-2], self._stack[-1])]

    def list_marked(self, _: object) -> None:
        values = self.since_mark()
        self._stack.append(values)

    def dict_marked(self, _: object) -> None:
        values = self.since_mark()
        self._stack.append({})
        self._put(values)

    def append_one(self, _: object) -> None:
        self._append([self._stack.pop()])

    def append_marked(self, _: object) -> None:
        self._append(self.since_mark())

    def put_one(self, _: object) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._put([key, value])

    def put_marked(self, _: object) -> None:
        self._put(self.since_mark())

    def _append(self, values: list[object]) -> None:
        target = self._stack[-1]
        if isinstance(target, Unknown):
            target.items.extend(values)
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise TypeError("values appended to something that is no list")

    def _put(self, values: list[object]) -> None:
        target = self._stack[-1]
        if len(values) % 2:
            raise ValueError("a key without a value")
        if isinstance(target, Unknown):
            target.items.extend(values)
        elif isinstance(target, dict):
            target.update((_key(key), value) for key, value in _pairs(values))
        else:
            raise TypeError("values put into something that is no dict")

    def call(self, _: object) -> None:
        args, of = self._stack.pop(), self._stack.pop()
        if not isinstance(args, tuple):
            raise TypeError("a call without arguments")
        self._call(of, args)

    def call_with_names(self, _: object) -> None:
        names, args, of = self._stack.pop(), self._stack.pop(), self._stack.pop()
        if not isinstance(args, tuple) or not isinstance(names, dict):
            raise TypeError("a call without arguments")
        self._call(of, (*args, names) if names else args)

    def call_marked(self, _: object) -> None:
        of, *args = self.since_mark()
        self._call(of, tuple(args))

    def call_named(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self._call(_global(module, name), tuple(self.since_mark()))

    def find(self, argument: object) -> None:
        module, _, name = str(argument).partition(" ")
        self._stack.append(known.meaning(_global(module, name)))

    def find_stacked(self, _: object) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(known.meaning(_global(module, name)))

    def storage(self, _: object) -> None:
        self._stack.append(_storage(self._stack.pop()))

    def build(self, _: object) -> None:
        """Set an instance's fields. Attributes of dicts and tensors (state_dict's `_metadata`) say nothing we need."""
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, Unknown):
            target.state = state
        elif isinstance(target, Record):
            if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
                state = state[1]  # a class with slots
            if not isinstance(state, dict):
                target.fields["state"] = state
            elif target.fields:
                raise ValueError("an instance that is built twice")
            else:
                target.fields = state

    def _call(self, of: object, args: tuple[object, ...]) -> None:
        if not isinstance(of, Global):
            raise TypeError("something is called that is no name")
        value = known.made(of, args)
        self._copies_left -= len(args) + (len(value) if isinstance(value, Sized) else 0)
        if self._copies_left < 0:
            raise ValueError("the calls make more than a file of this length can hold")
        self._stack.append(value)


def _pairs(values: list[object]) -> Iterator[tuple[object, object]]:
    return zip(values[::2], values[1::2], strict=True)


def _key(key: object) -> object:
    """Only what hashes in constant time: a tuple of tuples of tuples can take forever."""
    flat = isinstance(key, tuple) and len(key) <= KEY_ITEMS_MAX and all(_is_short(item) for item in key)
    if flat or _is_short(key) or isinstance(key, Record | Unknown | Global | ElementType):
        return key
    raise ValueError("a dict's key that is neither text, number nor record")


def _is_short(key: object) -> bool:
    return type(key) in NAMED and (not isinstance(key, int) or key.bit_length() <= KEY_BITS_MAX)


def _index(argument: object) -> int:
    index = int(argument) if isinstance(argument, int | str) else -1
    if index < 0:
        raise ValueError("a place in the memo below zero")
    return index


def _global(module: object, name: object) -> Global:
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a name that is no text")
    if len(module) + len(name) > NAME_CHARACTERS_MAX:
        raise ValueError("a name without end")
    return Global(module, name)


def _storage(said: object) -> StorageRef:
    """torch's reference to a member: ("storage", class, key, device, number of elements)."""
    if not isinstance(said, tuple) or len(said) != 5:
        raise ValueError("a reference to something else than a storage")
    kind, dtype, key, _, count = said
    if kind != "storage" or not isinstance(dtype, ElementType) or not isinstance(key, str):
        raise ValueError("a reference to something else than a storage of a known type")
    if type(count) is not int or not 0 <= count < known.COUNT_MAX:
        raise ValueError("a storage of an impossible length")
    return StorageRef(key, dtype.name, count)


OPERATIONS: MappingProxyType[str, Callable[[Machine, object], None]] = MappingProxyType({
    "MARK": Machine.mark, "POP": Machine.pop, "POP_MARK": Machine.pop_mark, "DUP": Machine.duplicate,
    "PUT": Machine.remember, "BINPUT": Machine.remember, "LONG_BINPUT": Machine.remember, "MEMOIZE": Machine.remember,
    "GET": Machine.recall, "BINGET": Machine.recall, "LONG_BINGET": Machine.recall,
    "TUPLE": Machine.tuple_marked, "TUPLE1": Machine.tuple_1, "TUPLE2": Machine.tuple_2, "TUPLE3": Machine.tuple_3,
    "LIST": Machine.list_marked, "FROZENSET": Machine.list_marked, "DICT": Machine.dict_marked,
    "APPEND": Machine.append_one, "APPENDS": Machine.append_marked, "ADDITEMS": Machine.append_marked,
    "SETITEM": Machine.put_one, "SETITEMS": Machine.put_marked,
    "REDUCE": Machine.call, "NEWOBJ": Machine.call, "NEWOBJ_EX": Machine.call_with_names, "OBJ": Machine.call_marked,
    "INST": Machine.call_named, "GLOBAL": Machine.find, "STACK_GLOBAL": Machine.find_stacked,
    "BINPERSID": Machine.storage, "BUILD": Machine.build,
})  # fmt: skip
