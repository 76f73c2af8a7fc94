"""Guards against files that are hostile, damaged or odd.

Model folders, run folders and data sets may come from strangers. Every reader in this package goes through
the functions below. They execute nothing, follow no symbolic link unless told to, never wait at a pipe, read
no more than a limit, and raise the caller's `error`, which names the file. What a model folder may hold is
decided in `saving.model_folder`, and a run folder in `experiments.run_folder`.
"""

import gzip
import hashlib
import io
import json
import lzma
import math
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from apportion.errors import ApportionError

if TYPE_CHECKING:  # `apportion check` does not wait for torch
    from torch import Tensor

JSON_LIMIT = 1 << 26  # bytes of a JSON file
JSON_DEPTH = 16
WEIGHTS_LIMIT = 1 << 36  # bytes of a file of tensors
HEADER_LIMIT = 1 << 24  # bytes that describe the tensors of a file
LARGEST = 1e100  # the sums and squares of such numbers are still finite
NUMBER = (int, float)

# What the standard library raises on damaged archives; RuntimeError covers the RecursionError of tar headers.
BROKEN_ARCHIVE = (
    OSError, EOFError, ValueError, IndexError, KeyError, OverflowError, RuntimeError,
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


# --- text and numbers


def printable(text: object, limit: int = 200) -> str:
    """The text on one line, without control characters, cut to about `limit` characters.

    Names and lines from files may hold terminal escapes, line breaks or megabytes.
    """
    start = str(text)[: limit + 1]
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in start)
    return escaped if len(escaped) <= limit else escaped[:limit] + "…"


def printable_lines(text: object, limit: int = 10_000) -> str:
    """The same for a message of several lines: line breaks stay."""
    return "\n".join(printable(line, limit) for line in str(text)[: limit + 1].split("\n"))


def name_list(names: Sequence[Any], limit: int = 10) -> str:
    """The first names, for a message."""
    return ", ".join(printable(repr(name), 60) for name in names[:limit]) + (
        ", …" if len(names) > limit else ""
    )


def check_number(
    value: object,
    what: str,
    *,
    error: type[ApportionError],
    low: float = -LARGEST,
    high: float = LARGEST,
    integer: bool = False,
) -> None:
    """Raise unless `value` is a finite number, not a boolean, between `low` and `high`, both included."""
    kinds = int if integer else NUMBER
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if integer else "a number"
        raise error(f"{what} is {printable(repr(value), 40)}; it must be {kind} from {low:g} to {high:g}")


# --- reading files


def open_regular_file(
    path: Path, *, error: type[ApportionError], follow_symlinks: bool = False
) -> io.BufferedReader:
    """A regular file, open for reading. Links (by default), folders, pipes and devices are refused."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    if not follow_symlinks:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if path.is_symlink():
            raise error(f"{path} is a symbolic link; put the file itself there")
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise error(f"{path} is missing") from None
    except (OSError, ValueError) as problem:  # ValueError: a null character in the name
        raise error(f"{path} cannot be opened: {reason_of(problem)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(
    path: Path, limit: int, *, error: type[ApportionError], follow_symlinks: bool = False
) -> bytes:
    """The content of a regular file; one with more than `limit` bytes is refused before it is read."""
    with open_regular_file(path, error=error, follow_symlinks=follow_symlinks) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise error(f"{path} has {size:,} bytes, more than the {limit:,} that such a file may have")
        try:
            content = file.read(size + 1)
        except OSError as problem:
            raise error(f"{path} cannot be read: {reason_of(problem)}") from None
    if len(content) != size:
        raise error(f"{path} changed while it was read; try again")
    return content


def reason_of(problem: Exception) -> str:
    return printable(getattr(problem, "strerror", None) or problem)


# --- JSON


def read_json(path: Path, schema: Any = None, *, error: type[ApportionError], limit: int = JSON_LIMIT) -> Any:
    """The values of a JSON file, checked against a schema (see `check_json`)."""
    return parse_json(read_bytes(path, limit, error=error), str(path), schema, error=error)


def parse_json(text: bytes | str, what: str, schema: Any = None, *, error: type[ApportionError]) -> Any:
    """The values of a JSON text. NaN, infinities, deep nesting and broken characters are refused."""
    try:
        values = json.loads(text, parse_float=_finite, parse_constant=_finite)
        _check_depth(values, JSON_DEPTH)
    except (ValueError, RecursionError) as problem:
        raise error(f"{what} is not valid JSON: {printable(problem)}") from None
    if schema is not None:
        check_json(values, schema, what, error=error)
    return values


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is not finite")
    return value


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError, a ValueError, for half of a surrogate pair
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise ValueError(f"it is nested more than {JSON_DEPTH} deep")
    if isinstance(value, dict):
        for key in value:
            key.encode()
        value = value.values()
    for item in value:
        _check_depth(item, depth - 1)


def check_json(values: Any, schema: Any, what: str, *, error: type[ApportionError]) -> None:
    """Raise unless JSON values have the described shape.

    A schema is a type, `None` for null, a tuple of alternatives, `[schema]` for a list whose items are
    alike, or a dict. The keys of a dict must be present, unless they end in "?"; "*" stands for all other
    keys, which are not checked without it. Numbers must be below 1e100; whole numbers must fit into 64 bits.

    >>> schema = {"epoch": int, "loss": {"*": float}}
    >>> check_json({"epoch": 1, "loss": {"a": 0.5}}, schema, "line 1", error=ApportionError)
    """
    if isinstance(schema, tuple):
        _check_alternatives(values, schema, what, error)
    elif isinstance(schema, dict):
        _check_dict(values, schema, what, error)
    elif isinstance(schema, list):
        if not isinstance(values, list):
            raise _wrong(values, what, "a list", error)
        for i, item in enumerate(values):
            check_json(item, schema[0], f"{what}[{i}]", error=error)
    elif schema is None:
        if values is not None:
            raise _wrong(values, what, "null", error)
    else:
        if type(values) is not schema:  # True is no int
            raise _wrong(values, what, schema.__name__, error)
        if schema in NUMBER:
            low, high = (-(1 << 63), (1 << 63) - 1) if schema is int else (-LARGEST, LARGEST)
            check_number(values, what, low=low, high=high, error=error)


def _check_alternatives(values: Any, schemas: Sequence[Any], what: str, error: type[ApportionError]) -> None:
    for schema in schemas:
        if type(values) is _type_of(schema):
            check_json(values, schema, what, error=error)
            return
    raise _wrong(values, what, "another type", error)


def _type_of(schema: Any) -> type:
    if isinstance(schema, dict | list):
        return type(schema)
    return type(None) if schema is None else schema


def _check_dict(values: Any, schema: Mapping[str, Any], what: str, error: type[ApportionError]) -> None:
    if not isinstance(values, dict):
        raise _wrong(values, what, "a table", error)
    for key in schema:
        if key != "*" and not key.endswith("?") and key not in values:
            raise error(f"{what} is damaged: it has no {key!r}")
    for key, value in values.items():
        inner = schema.get(key, schema.get(f"{key}?", schema.get("*", ...)))
        if inner is not ...:
            check_json(value, inner, f"{what}: {printable(key, 40)}", error=error)


def _wrong(value: Any, what: str, expected: str, error: type[ApportionError]) -> ApportionError:
    return error(f"{what} is damaged: it is {printable(repr(value), 40)}, but must be {expected}")


# --- tensors and arrays


def read_tensors(
    path: Path, expected: "Mapping[str, Tensor]", *, error: type[ApportionError]
) -> "dict[str, Tensor]":
    """The tensors of a safetensors file, which must have the names, shapes and types of `expected`.

    `expected` may lie on the meta device. The header is checked before anything is allocated; all numbers
    must be finite.
    """
    with open_regular_file(path, error=error) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(HEADER_LIMIT, size - 8):
            raise error(f"{path} is not a safetensors file, or is cut short")
        header = file.read(length)
        described = parse_json(header, f"the header of {path}", {"*": {}}, error=error)
        _check_described(path, described, expected, error)
        left = sum(value.numel() * value.element_size() for value in expected.values())
        if size != 8 + length + left:
            raise error(f"{path} has {size:,} bytes, but its weights need {8 + length + left:,}")
        tensors, _ = parse_tensors(start + header + file.read(left), str(path), error=error)
    for name, value in tensors.items():
        if not bool(value.isfinite().all()):
            raise error(f"{path} has numbers in {printable(name)} that are not finite")
    return tensors


def _check_described(
    path: Path, described: Mapping[str, Any], expected: "Mapping[str, Tensor]", error: type[ApportionError]
) -> None:
    """Compare the header of a safetensors file with what is expected."""
    names = [name for name in described if name != "__metadata__"]
    for name in sorted({*names, *expected}):
        entry = described.get(name)
        found = None if entry is None else (str(entry.get("dtype")), entry.get("shape"))
        wanted = None
        if name in expected:
            wanted = _safetensors_type(expected[name]), list(expected[name].shape)
        if found != wanted:
            has, needs = (printable(each) for each in (found, wanted))
            raise error(f"{path} has {has} for {printable(name)}, but the network needs {needs}")


def _safetensors_type(value: "Tensor") -> str:
    kind = str(value.dtype).removeprefix("torch.")
    for name, short in (("bfloat", "BF"), ("float", "F"), ("uint", "U"), ("int", "I")):
        kind = kind.replace(name, short)
    return kind.upper()


def parse_tensors(
    data: bytes, what: str, *, error: type[ApportionError]
) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors, in the order of their names, and the metadata of the bytes of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as problem:
        raise error(f"{what} is not a safetensors file, or is damaged: {printable(problem)}") from None
    return dict(sorted(tensors.items())), header.get("__metadata__", {})


_NPY_START = 4096  # bytes that surely hold the header of a .npy file; NumPy writes 128
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<|](?:[iu][1248]|f[248]))', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,12},? ?){0,5})\), *\}\s*"
)


def read_npy(path: Path, *, error: type[ApportionError], follow_symlinks: bool = False) -> np.ndarray:
    """The numbers of a .npy file, mapped from the disk; changing them leaves the file as it is."""
    with open_regular_file(path, error=error, follow_symlinks=follow_symlinks) as file:
        dtype, shape, offset = _npy_header(file.read(_NPY_START), str(path), error)
        size = os.fstat(file.fileno()).st_size
        if size != offset + dtype.itemsize * math.prod(shape):
            raise error(f"{path} is cut short or too long")
        if not math.prod(shape):
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(file, dtype, "c", offset, shape))


def parse_npy(data: bytes, what: str, *, error: type[ApportionError]) -> np.ndarray:
    """The numbers of the bytes of a .npy file, read-only."""
    dtype, shape, offset = _npy_header(data[:_NPY_START], what, error)
    if len(data) != offset + dtype.itemsize * math.prod(shape):
        raise error(f"{what} is cut short or too long")
    return np.frombuffer(data, dtype, offset=offset).reshape(shape)


def _npy_header(
    start: bytes, what: str, error: type[ApportionError]
) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type, shape and offset of the numbers. By a pattern, since the header is a Python literal."""
    begin = (
        10 if start[6:7] == b"\x01" else 12
    )  # the length of the header has two bytes in version 1, else four
    end = begin + int.from_bytes(start[8:begin], "little")
    match = _NPY_HEADER.fullmatch(start[begin:end])
    if not start.startswith(b"\x93NUMPY") or len(start) < end or match is None:
        raise error(f"{what} is not a .npy file of numbers in C order")
    shape = tuple(int(size) for size in re.findall(rb"\d+", match[2]))
    return np.dtype(match[1].decode()), shape, end


def read_npz(path: Path, limit: int, *, error: type[ApportionError]) -> dict[str, np.ndarray]:
    """The arrays of a .npz file, by name; more than `limit` bytes are refused before they are unpacked."""
    arrays: dict[str, np.ndarray] = {}
    with open_regular_file(path, error=error) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if sum(member.file_size for member in members) > limit:
                    raise error(f"{path} unpacks to more than {limit:,} bytes")
                for member in members:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = parse_npy(archive.read(member), f"{name} of {path}", error=error)
        except BROKEN_ARCHIVE as problem:
            if isinstance(problem, error):
                raise
            raise error(f"{path} cannot be read: {reason_of(problem)}") from None
    return arrays


# --- archives: nothing is unpacked onto the disk, so no path in an archive leads anywhere


class _Limited:
    """A stream that refuses to give more than a number of bytes, however many are asked for at once."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.stream = stream
        self.left = limit

    def read(self, size: int = -1) -> bytes:
        wanted = self.left + 1 if size < 0 else min(size, self.left + 1)
        data = self.stream.read(wanted)
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it unpacks to more than it should")
        return data


def check_unpacked_size(path: Path, limit: int, *, error: type[ApportionError]) -> None:
    """Raise an error for a zip file that is damaged, or whose members claim more than `limit` bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, NotImplementedError) as problem:
        raise error(f"{printable(path)} cannot be read: {printable(problem)}") from problem
    if size > limit:
        raise error(f"{printable(path)} claims to hold {size:,} bytes, more than {limit:,}")


def check_sha256(path: Path, expected: str, *, error: type[ApportionError]) -> None:
    """Raise unless a file has the expected SHA-256 sum (hexadecimal)."""
    with open_regular_file(path, error=error, follow_symlinks=True) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise error(f"{path} is damaged: its sha256 is {found}, expected {expected}")


def read_gzip(path: Path, limit: int, *, error: type[ApportionError]) -> bytes:
    """The content of a .gz file; more than `limit` unpacked bytes are refused."""
    with open_regular_file(path, error=error, follow_symlinks=True) as file:
        try:
            with gzip.open(file) as stream:
                return _Limited(cast("IO[bytes]", stream), limit).read()
        except BROKEN_ARCHIVE as problem:
            raise error(f"{path} cannot be read: {reason_of(problem)}") from None


def read_tar(path: Path, limits: Mapping[str, int], *, error: type[ApportionError]) -> dict[str, bytes]:
    """The named files of a .tar.gz, in whichever folder of it, each with at most its limit of bytes."""
    found: dict[str, bytes] = {}
    total = sum(limits.values()) + (1 << 20)  # one megabyte for headers and files that nobody asked for
    with open_regular_file(path, error=error, follow_symlinks=True) as file:
        try:
            with gzip.open(file) as stream:
                limited = cast("IO[bytes]", _Limited(cast("IO[bytes]", stream), total))
                with tarfile.open(fileobj=limited, mode="r|") as tar:
                    for member in tar:
                        name = PurePosixPath(member.name).name
                        if name in limits:
                            if name in found or member.size > limits[name]:
                                raise ValueError(f"its {name} is too large, or there twice")
                            found[name] = _tar_member(tar, member)
        except BROKEN_ARCHIVE as problem:
            raise error(f"{path} cannot be read: {reason_of(problem)}") from None
    if missing := sorted(limits.keys() - found.keys()):
        raise error(f"{path} lacks {', '.join(missing)}")
    return found


def _tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    # links lead to other members, and a sparse file makes terabytes out of nothing
    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise ValueError(f"its {PurePosixPath(member.name).name} is not a regular file")
    return content.read()
