"""Arrays from bytes in the published formats: IDX, .npy, .npz, CIFAR's rows; anything else is a DataError."""

import re
from math import prod
from pathlib import Path

import numpy as np

from apportion.data.archives import BROKEN, read_zip
from apportion.errors import DataError

HEADER_BYTES = 4096  # of a .npy file; NumPy writes 128
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<|][ui][1248])', 'fortran_order': False, 'shape': \(((?:\d{1,10},? ?){0,4})\), *\}\s*"
)


def idx(data: bytes, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Unsigned bytes in the IDX format of MNIST: two zeros, type 8, rank, sizes in big-endian order."""
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    if data[: len(header)] != header or len(data) != len(header) + prod(shape):
        raise DataError(f"{what} is not an IDX file of {' x '.join(map(str, shape))} bytes, or is cut short")
    return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape)


def npy_header(start: bytes, what: str) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type, shape and offset of a .npy file's integers; by a pattern: the header is a Python literal."""
    begin = 10 if start[6:7] == b"\x01" else 12  # the header's length has two bytes in version 1, else four
    end = begin + int.from_bytes(start[8:begin], "little")
    match = _NPY_HEADER.fullmatch(start[begin:end])
    if not start.startswith(b"\x93NUMPY") or len(start) < end or match is None:
        raise DataError(f"{what} is not a .npy file of integers")
    return np.dtype(match[1].decode()), tuple(int(size) for size in re.findall(rb"\d+", match[2])), end


def npy(data: bytes, what: str) -> np.ndarray:
    """The integers of a .npy file."""
    dtype, shape, offset = npy_header(data[:HEADER_BYTES], what)
    if len(data) != offset + dtype.itemsize * prod(shape):
        raise DataError(f"{what} is cut short or too long")
    return np.frombuffer(data, dtype, offset=offset).reshape(shape)


def npy_file(path: Path) -> np.ndarray:
    """The integers of a .npy file, mapped from the disk; writing to them leaves the file as it is."""
    try:
        with path.open("rb") as stream:
            dtype, shape, offset = npy_header(stream.read(HEADER_BYTES), str(path))
        return np.asarray(np.memmap(path, dtype, "c", offset, shape))
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except BROKEN as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def npz(path: Path, limit: int) -> np.ndarray:
    """The one array of a .npz file as KMNIST publishes them, at most `limit` bytes and a header."""
    return npy(read_zip(path, "arr_0.npy", limit + HEADER_BYTES), str(path))


def cifar_rows(data: bytes, count: int, what: str, n_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 32, 32, 3) and labels of CIFAR's binary format; of two labels the second, fine one."""
    width = n_labels + 3072
    if len(data) != count * width:
        raise DataError(f"{what} has {len(data)} bytes, expected {count * width}")
    rows = np.frombuffer(data, np.uint8).reshape(count, width)
    return planes_last(rows[:, n_labels:]), rows[:, n_labels - 1].astype(np.int64)


def planes_last(rows: np.ndarray) -> np.ndarray:
    """(n, 32, 32, 3) from rows that hold the red, then the green, then the blue plane."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
