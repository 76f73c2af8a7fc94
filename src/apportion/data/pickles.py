"""CIFAR's python archives without pickle: a reader of the few opcodes that those files consist of.

Unpickling can call any function, and even a list of allowed functions leaves ways to fill the memory or to
hang. Here nothing is called: an object that a file asks to build becomes an inert note of what was asked.
"""

import io
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np

from apportion.data.formats import planes_last
from apportion.errors import DataError

_VALUES = {"BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_WANTED = {
    *(
        *_VALUES,
        *_CONSTANTS,
        "PROTO",
        "STOP",
        "MARK",
        "GLOBAL",
        "REDUCE",
        "BUILD",
        "EMPTY_DICT",
        "EMPTY_LIST",
    ),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS"),
}
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes if opcode.name in _WANTED}
_NAMES = {
    *("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"),
    *("numpy ndarray", "numpy dtype"),
}


@dataclass
class _Asked:
    """What a file asked to be built: a name of _NAMES, arguments, and the state it gave afterwards."""

    name: str
    arguments: Any = None
    state: Any = None


def cifar_pickle(data: bytes, count: int, what: str, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 32, 32, 3) and labels of one batch file of CIFAR's python archives."""
    try:
        batch = _content(data, max_opcodes=16 * count + 1000)  # an image has a name and two labels at most
        labels = _checked(batch[label_key], list)
        if len(labels) != count or not all(type(label) is int for label in labels):
            raise DataError(f"it does not hold {count} labels")
        _, shape, kind, by_columns, raw = _checked(_checked(batch["data"], _Asked).state, tuple)
        if shape != (count, 3072) or kind.arguments[0] != "u1" or by_columns is not False:
            raise DataError(f"it does not hold {count} images of 3072 bytes")
        pixels = np.frombuffer(_checked(raw, str).encode("latin-1"), np.uint8)  # Python 2's texts were bytes
        return planes_last(pixels.reshape(count, 3072)), np.array(labels, np.int64)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise DataError(f"{what} is not a batch of CIFAR's python archive: {error}") from None


def _content(data: bytes, max_opcodes: int) -> dict[str, Any]:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument in islice(_opcodes(io.BytesIO(data)), max_opcodes):
        if opcode == "STOP":
            return _checked(stack.pop(), dict)
        if opcode in _VALUES:
            stack.append(argument)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif opcode == "MARK":
            marks.append(len(stack))
        elif opcode == "GLOBAL":
            stack.append(_Asked(argument))
        elif opcode != "PROTO":
            _combine(opcode, stack, marks)
    raise DataError("it has far more in it than a batch of images")


def _opcodes(stream: IO[bytes]) -> Iterator[tuple[str, Any]]:
    """Names and arguments; pickletools.genops would parse the arguments of unwanted opcodes too."""
    while True:
        code = stream.read(1).decode("latin-1")
        if code not in _OPCODES:
            raise DataError(f"it uses the opcode {code!r}, which no batch of images needs")
        opcode = _OPCODES[code]
        if opcode.name == "GLOBAL":
            name = b" ".join(stream.readline(80).rstrip(b"\n") for _ in range(2)).decode("latin-1")
            if name not in _NAMES:
                raise DataError(f"it asks for {name!r}, which no batch of images needs")
            yield opcode.name, name
        else:
            yield opcode.name, opcode.arg.reader(stream) if opcode.arg else None


def _combine(opcode: str, stack: list[Any], marks: list[int]) -> None:
    """The opcodes that take values off the stack, collect them and put one back."""
    match opcode:
        case "EMPTY_DICT":
            stack.append({})
        case "EMPTY_LIST":
            stack.append([])
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            stack.append(tuple(_taken(stack, len(stack) - int(opcode[-1]))))
        case "TUPLE":
            stack.append(tuple(_taken(stack, marks.pop())))
        case "APPEND" | "APPENDS":
            items = _taken(stack, marks.pop() if opcode == "APPENDS" else len(stack) - 1)
            _checked(stack[-1], list).extend(items)
        case "SETITEM" | "SETITEMS":
            items = _taken(stack, marks.pop() if opcode == "SETITEMS" else len(stack) - 2)
            keys = [_checked(key, str) for key in items[::2]]  # the hash of a nested tuple can take for ever
            _checked(stack[-1], dict).update(zip(keys, items[1::2], strict=True))
        case "REDUCE":
            arguments = _checked(stack.pop(), tuple)
            stack.append(_Asked(_checked(stack.pop(), _Asked).name, arguments))
        case "BUILD":
            state = stack.pop()
            _checked(stack[-1], _Asked).state = state


def _taken(stack: list[Any], start: int) -> list[Any]:
    if start < 0:
        raise DataError("it takes more values than it gave")
    items = stack[start:]
    del stack[start:]
    return items


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise DataError(f"it has a {type(value).__name__} where a {kind.__name__} should be")
    return value
