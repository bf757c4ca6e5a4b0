"""Pickles of numpy arrays, read without running anything that is in them.

A pickle is a program: it may name any function and call it with any arguments, and even numpy's own can be brought down
by arguments that numpy never wrote. This reader therefore does not unpickle: it knows the opcodes that plain data and
arrays are made of, and makes each array itself from a shape, the name of a number type and bytes that fit together.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# CIFAR's files have some 45,000; each may take a hundred bytes, whatever the file's own length.
MAX_OPCODES = 200_000
MAX_AXES = 8
_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_ORDERS = ("|", "<", ">")

# The three names that an array is rebuilt from; the module of the first was renamed between versions.
_RECONSTRUCT, _NDARRAY, _DTYPE = object(), object(), object()
_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
}
_MARK = object()


class _Unfinished:
    """An array before its content."""


@dataclass
class _Number:
    name: str  # of its type, one of _NUMBERS
    order: str = "|"  # of its bytes


def load_arrays(content: bytes) -> Any:
    """The dicts, lists, numbers, byte strings and arrays of a pickle; Python 2's strings become bytes.

    Anything else in it is a ValueError, and nothing has been called then.
    """
    try:
        return _Reader().read(content)
    # A damaged pickle fails in whichever way its next opcode fails.
    except Exception as error:
        raise ValueError(f"not a pickle of plain arrays: {error}") from error


class _Reader:
    """The stack and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self, content: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count >= MAX_OPCODES:
                raise ValueError(f"it has more than {MAX_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                break
            if opcode.name not in _STEPS:
                raise ValueError(f"plain arrays have no opcode {opcode.name}")
            _STEPS[opcode.name](self, argument)
        (result,) = self.stack
        return result

    def behind_mark(self) -> list[Any]:
        """What lies above the last mark, taken from the stack with it."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("a mark is missing")
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def take(self, count: int) -> list[Any]:
        """The last values of the stack, taken from it."""
        if len(self.stack) < count:
            raise ValueError("the stack is empty")
        return [self.stack.pop() for _ in range(count)][::-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to something other than a list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise ValueError("it sets an item of something other than a dict")
        self.stack[-1].update(_pairs(items))

    def name(self, module: Any, text: Any) -> None:
        # The types first: a file may have anything in their place.
        if not isinstance(module, str) or not isinstance(text, str):
            raise ValueError("a name is not text")
        if (module, text) not in _NAMES:
            raise ValueError(f"it asks for {module:.80}.{text:.80}, which an array does not need")
        self.push(_NAMES[module, text])

    def call(self) -> None:
        function, arguments = self.take(2)
        if function is _DTYPE and isinstance(arguments, tuple) and arguments:
            name = _text(arguments[0])
            if name not in _NUMBERS:
                raise ValueError(f"{name!r:.40} is not a number type; known are {', '.join(_NUMBERS)}")
            self.push(_Number(name))
        elif function is _RECONSTRUCT and isinstance(arguments, tuple) and arguments[:1] == (_NDARRAY,):
            self.push(_Unfinished())
        else:
            raise ValueError("it calls something that an array does not need")

    def build(self) -> None:
        target, state = self.take(2)
        if isinstance(target, _Number) and isinstance(state, tuple) and len(state) > 1:
            order = _text(state[1])
            # The fields of a record come next; a number has none.
            if order not in _ORDERS or any(part is not None for part in state[2:5]):
                raise ValueError("a number type has fields, or an unknown byte order")
            target.order = order
            self.push(target)
        elif isinstance(target, _Unfinished) and isinstance(state, tuple) and len(state) == 5:
            made = _array(*state[1:])
            self.memo = {key: made if value is target else value for key, value in self.memo.items()}
            self.push(made)
        else:
            raise ValueError("it sets the state of something other than an array")


def _text(what: Any) -> str:
    if isinstance(what, bytes):
        what = what.decode("latin-1")
    return what if isinstance(what, str) else ""


def _array(shape: Any, number: Any, fortran: Any, content: Any) -> np.ndarray[Any, Any]:
    sizes = isinstance(shape, tuple) and len(shape) <= MAX_AXES and all(type(n) is int and n >= 0 for n in shape)
    if not sizes or not isinstance(number, _Number) or not isinstance(content, bytes):
        raise ValueError("an array is not made of a shape, a number type and bytes")
    dtype = np.dtype(f"{number.order}{number.name}")
    if math.prod(shape) * dtype.itemsize != len(content) or not content:
        raise ValueError(f"an array of shape {shape!r:.80} and {number.name} does not have {len(content):,} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran is True else "C")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    keys = items[::2]
    # Nested tuples as keys can take for ever to hash.
    if len(items) % 2 or not all(isinstance(key, bytes | str | int) for key in keys):
        raise ValueError("the keys of a dict are texts or numbers")
    return dict(zip(keys, items[1::2], strict=True))


_LITERALS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
)
# What each opcode does, given the reader and the opcode's argument.
_STEPS: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(_LITERALS, lambda r, x: r.push(x)),
    **dict.fromkeys(("SHORT_BINSTRING", "BINSTRING"), lambda r, x: r.push(str(x).encode("latin-1"))),
    **dict.fromkeys(("PROTO", "FRAME"), lambda r, x: None),
    "NONE": lambda r, x: r.push(None),
    "NEWTRUE": lambda r, x: r.push(True),
    "NEWFALSE": lambda r, x: r.push(False),
    "MARK": lambda r, x: r.push(_MARK),
    "EMPTY_TUPLE": lambda r, x: r.push(()),
    "TUPLE": lambda r, x: r.push(tuple(r.behind_mark())),
    "TUPLE1": lambda r, x: r.push(tuple(r.take(1))),
    "TUPLE2": lambda r, x: r.push(tuple(r.take(2))),
    "TUPLE3": lambda r, x: r.push(tuple(r.take(3))),
    "EMPTY_LIST": lambda r, x: r.push([]),
    "LIST": lambda r, x: r.push(r.behind_mark()),
    "APPEND": lambda r, x: r.extend(r.take(1)),
    "APPENDS": lambda r, x: r.extend(r.behind_mark()),
    "EMPTY_DICT": lambda r, x: r.push({}),
    "DICT": lambda r, x: r.push(_pairs(r.behind_mark())),
    "SETITEM": lambda r, x: r.update(r.take(2)),
    "SETITEMS": lambda r, x: r.update(r.behind_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda r, x: r.memo.update({x: r.stack[-1]})),
    "MEMOIZE": lambda r, x: r.memo.update({len(r.memo): r.stack[-1]}),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda r, x: r.push(r.memo[x])),
    "GLOBAL": lambda r, x: r.name(*x.split(" ", 1)),
    "STACK_GLOBAL": lambda r, x: r.name(*r.take(2)),
    "REDUCE": lambda r, x: r.call(),
    "BUILD": lambda r, x: r.build(),
}
