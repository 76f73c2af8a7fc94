"""Containers from strangers: a .gz, .tar.gz, .zip or .xz becomes bytes, or a DataError and nothing else.

Nothing is unpacked onto the disk, and a path inside an archive is never used as one. Every reader is told the
size that it may expect and stops as soon as there is more, so that a small archive cannot fill the memory.
"""

import gzip
import hashlib
import lzma
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, cast

from apportion.errors import DataError

BROKEN = (  # what the standard library raises on damaged files; RecursionError comes from chained tar headers
    *(OSError, EOFError, ValueError, IndexError, KeyError, OverflowError, RuntimeError),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


class _Limited:
    """A stream that refuses to give more than a number of bytes, however many are asked for at once."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self.stream, self.left = stream, limit

    def read(self, size: int = -1) -> bytes:
        wanted = self.left + 1 if size < 0 else min(size, self.left + 1)
        data = self.stream.read(wanted)
        self.left -= len(data)
        if self.left < 0:
            raise DataError("it holds more than it should")
        return data


def check_sum(path: Path, expected: str | None) -> None:
    """The file has the sha256 sum that is expected of it, if any is."""
    if expected is None:
        return
    try:
        with path.open("rb") as stream:
            got = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if got != expected:
        raise DataError(f"{path} is damaged: it has sha256 {got}, expected {expected}")


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a file, unpacked if it ends in .gz; more than `limit` bytes are refused."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return _Limited(cast(IO[bytes], stream), limit).read()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except BROKEN as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def read_tar(path: Path, limits: dict[str, int]) -> dict[str, bytes]:
    """The named files of a .tar.gz, wherever in it they lie, each at most as large as its limit."""
    found: dict[str, bytes] = {}
    total = sum(limits.values()) + (1 << 20)  # a megabyte for headers, read-mes and names of classes
    try:
        with gzip.open(path) as stream:
            limited = cast(IO[bytes], _Limited(cast(IO[bytes], stream), total))
            with tarfile.open(fileobj=limited, mode="r|") as tar:
                for member in tar:
                    name = PurePosixPath(member.name).name
                    if name in limits:
                        if name in found or member.size > limits[name]:
                            raise DataError(f"its {name} is too large or there twice")
                        found[name] = _member(tar, member)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except BROKEN as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if missing := sorted(limits.keys() - found.keys()):
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return found


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    # links would lead to other members, and a sparse file makes terabytes of nothing
    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise DataError(f"its {PurePosixPath(member.name).name} is not a plain file")
    return content.read()


def read_zip(path: Path, member: str, limit: int) -> bytes:
    """One member of a zip file; its stated size, which bounds what is unpacked, is checked first."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(member)
            if info.file_size > limit:
                raise DataError(f"its {member} is larger than {limit} bytes")
            return archive.read(info)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except BROKEN as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def unxz(data: bytes, size: int, what: str) -> bytes:
    """At most `size` bytes, unpacked from xz."""
    try:
        stream = lzma.LZMADecompressor(memlimit=1 << 28)
        unpacked = stream.decompress(data, max_length=size + 1)
    except BROKEN as error:
        raise DataError(f"{what} cannot be unpacked: {error}") from None
    if len(unpacked) > size or not stream.eof or stream.unused_data:
        raise DataError(f"{what} does not unpack to {size} bytes, or to fewer")
    return unpacked
