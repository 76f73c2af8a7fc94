"""Published archives: .gz and .tar.gz files are read into memory, within a limit, and never unpacked to disk.

Every reader knows how large the content may be and stops as soon as there is more, so that a small archive
cannot fill the memory. A path inside an archive is never used as a path.
"""

import gzip
import hashlib
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, cast

from apportion.errors import DataError

# what the standard library raises for damaged files; a RecursionError (chained tar headers) is a RuntimeError
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    OverflowError,
    RuntimeError,
    tarfile.TarError,
    zlib.error,
)


class _LimitedStream:
    """A stream that raises DataError once more than `limit` bytes have been read from it."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.stream = stream
        self.left = limit

    def read(self, size: int = -1) -> bytes:
        wanted = self.left + 1 if size < 0 else min(size, self.left + 1)
        data = self.stream.read(wanted)
        self.left -= len(data)
        if self.left < 0:
            raise DataError("it is larger than it should be")
        return data


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of a file, decompressed if its name ends in .gz, but at most `limit` of them."""
    _check_is_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return _LimitedStream(cast(IO[bytes], stream), limit).read()
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def read_tar(path: Path, limits: dict[str, int]) -> dict[str, bytes]:
    """The named files of a .tar.gz, in whatever folder of it, each at most as large as its limit."""
    _check_is_file(path)
    found: dict[str, bytes] = {}
    total = sum(limits.values()) + (1 << 20)  # a megabyte for headers and files that are not needed
    try:
        with gzip.open(path) as stream:
            limited = cast(IO[bytes], _LimitedStream(cast(IO[bytes], stream), total))
            with tarfile.open(fileobj=limited, mode="r|") as tar:
                for member in tar:
                    name = PurePosixPath(member.name).name
                    if name not in limits:
                        continue
                    if name in found or member.size > limits[name]:
                        raise DataError(f"its {name} is too large or occurs twice")
                    found[name] = _read_member(tar, member, name)
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    missing = sorted(limits.keys() - found.keys())
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return found


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> bytes:
    if not member.isreg() or member.issparse():  # a link leads elsewhere; a sparse file may claim terabytes
        raise DataError(f"its {name} is not a regular file")
    content = tar.extractfile(member)
    if content is None:
        raise DataError(f"its {name} is not a regular file")
    return content.read()


def check_file_sum(path: Path, expected: str) -> None:
    """Check the sha256 sum of a file as it is published."""
    _check_is_file(path)
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if found != expected:
        raise DataError(f"{path} is damaged: it has sha256 {found}, expected {expected}")


def _check_is_file(path: Path) -> None:
    if not path.is_file():  # a named pipe would block the reader
        raise DataError(f"{path} is missing, or not a file")
