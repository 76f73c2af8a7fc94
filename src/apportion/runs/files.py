"""Files written whole or not at all, and read as a stranger's: up to a limit, of a known shape."""

import errno
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apportion.errors import RunError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NUMBER = (int, float)
DEPTH = 16
LIMIT = 1 << 25  # bytes of a text; the log of ten thousand epochs has 4 million
LARGEST = 1e100  # of numbers, whose sums and squares are then numbers too


GOES_ON = "and the same command goes on from the last checkpoint"


@contextmanager
def writing(path: Path, then: str = GOES_ON) -> Iterator[None]:
    """What the system says when it cannot write, in words; a full disk by its name."""
    try:
        yield
    except OSError as problem:
        full = problem.errno in FULL
        what = "the disk is full" if full else str(problem.strerror or problem)
        remedy = f"{'make room' if full else 'mend that'}, {then}"
        raise RunError(f"{path} cannot be written: {what}; {remedy}") from problem


def check_place(path: Path, *, folder: bool = False) -> None:
    """Refuse a user's file, or folder, that cannot be written, before there is any work for it to hold."""
    with writing(path, "or name another place"):
        if path.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        place = path.parent
        while not place.exists():
            place = place.parent
        tempfile.TemporaryFile(dir=place).close()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file of nobody's name beside the path, which takes its place at the end; a failure leaves nothing."""
    with writing(path, "or name another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
        try:
            beside.open("xb").close()
            yield beside
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Written beside, synced, then renamed: a crash leaves the old file or the new, never a part."""
    beside = path.with_name(path.name + ".new")
    with writing(path):
        try:
            with beside.open("wb") as file:
                file.write(content)
                sync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)  # half of it would only take room
            raise
        sync_folder(path.parent)


def sync(descriptor: int) -> None:
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """A new name is on the disk only once its folder is."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_bytes(path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of a file of a run; more than `limit` are refused before they are read."""
    if not path.is_file():  # nor a pipe, at which a reader would wait for ever
        raise RunError(f"{path} is missing; run it again, or leave this folder out")
    try:
        if path.stat().st_size > limit:
            raise RunError(f"{path} has more than {limit} bytes, which no such file needs")
        return path.read_bytes()
    except OSError as problem:
        raise RunError(f"{path} cannot be read: {problem.strerror}") from None


def read_json(path: Path, shape: Any) -> Any:
    """The values of a JSON file, once they are of the shape that `check_shape` describes."""
    return parsed(read_bytes(path), shape, str(path))


def parsed(text: bytes, shape: Any, what: str) -> Any:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RunError(f"{what} is damaged: {problem}; run it again, or leave this folder out") from None
    level = [values]
    for _ in range(DEPTH):
        level = [item for value in level for item in _inside(value)]
    if level:
        raise RunError(f"{what} is damaged: it is nested more than {DEPTH} deep")
    check_shape(values, shape, what)
    return values


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_shape(values: Any, shape: Any, what: str) -> None:
    """Refuse values of another shape: a dict has its keys (... stands for all others; one in a tuple may be
    missing), a list has one shape for all its items, and a type or a tuple of them is what a value must be;
    more keys than named are fine. Numbers are finite and none is huge.
    """
    kind = dict if isinstance(shape, dict) else list if isinstance(shape, list) else shape
    number = isinstance(values, NUMBER) and not isinstance(values, bool)
    huge = number and not abs(values) < (1 << 63 if isinstance(values, int) else LARGEST)
    if huge or not isinstance(values, kind) or (isinstance(values, bool) and kind is not bool):
        raise RunError(f"{what} is damaged: it is {str(values)[:40]!r}, which is not what a run writes there")
    if isinstance(shape, list) and isinstance(values, list):
        for i, item in enumerate(values):
            check_shape(item, shape[0], f"{what}[{i}]")
    if isinstance(shape, dict) and isinstance(values, dict):
        for name in (name for name in shape if isinstance(name, str) and name not in values):
            raise RunError(f"{what} is damaged: it has no {name!r}")
        for name, value in values.items():
            inner = shape.get(name, shape.get((name,), shape.get(...)))
            if inner is not None:
                check_shape(value, inner, f"{what}: {name}")
