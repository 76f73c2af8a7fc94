"""Arrays that may be larger than memory: large ones lie in a temporary file that is mapped into memory.

A mapped array is used like any other. The system keeps as much of it in memory as there is room for, and
writes the rest to the file. The file has no name, so nothing is left of it however the process ends.
"""

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from apportion.errors import DataError

SMALL = 1 << 24  # bytes; smaller arrays are always in memory
SHARE = 8  # arrays larger than this part of the available memory are mapped
PIECE = 1 << 20  # rows of one or two numbers that are processed at once


def empty_array(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array without values, in memory or, if it is large, in a temporary file.

    An array is large if it takes more than an eighth of the memory that is left. However many arrays are
    made, memory never gets full.
    """
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else shape
    n_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if dtype.hasobject or n_bytes == 0 or not is_large(n_bytes):
        return np.empty(shape, dtype)
    try:
        return np.ndarray(shape, dtype, _map_file(n_bytes))
    except DataError:
        if n_bytes < available_memory() // 2:
            return np.empty(shape, dtype)
        raise


def is_large(n_bytes: int) -> bool:
    """Whether an array of so many bytes is mapped."""
    return n_bytes > SMALL and n_bytes > available_memory() // SHARE


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array lies in a file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def pieces(n_rows: int, size: int | None = None) -> Iterator[slice]:
    """Slices of the rows, `size` or else PIECE at a time."""
    size = size or PIECE
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


# --- files


def _map_file(n_bytes: int) -> mmap.mmap:
    folder = temporary_folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), n_bytes)
            return mmap.mmap(file.fileno(), n_bytes)
    except OSError as problem:
        raise _no_room(folder, n_bytes, problem.strerror or str(problem)) from problem


def _reserve(file: int, n_bytes: int) -> None:
    """Give a file its blocks, so that a full disk is an error now and not a crash later."""
    try:
        os.posix_fallocate(file, 0, n_bytes)
    except (AttributeError, OSError) as problem:
        unknown = isinstance(problem, AttributeError)  # macOS and Windows
        if not unknown and problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        if shutil.disk_usage(temporary_folder()).free < n_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        os.truncate(file, n_bytes)


def check_room(n_bytes: int) -> None:
    """Raise DataError unless arrays of so many bytes fit onto the disk or into half of the memory."""
    folder = temporary_folder()
    free = shutil.disk_usage(folder).free
    if n_bytes > max(free, available_memory() // 2):
        raise _no_room(folder, n_bytes, f"{_gigabytes(free)} are free")


def temporary_folder() -> Path:
    """TMPDIR, if it is set. Otherwise /var/tmp, since /tmp is often a part of the memory."""
    folder = Path("/var/tmp")  # noqa: S108  the files in it have no name
    chosen = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    if not chosen and os.access(folder, os.W_OK):
        return folder
    return Path(tempfile.gettempdir())


def _no_room(folder: Path, n_bytes: int, reason: str) -> DataError:
    what = f"the table is larger than memory and needs {_gigabytes(n_bytes)} in {folder} ({reason})"
    return DataError(f"{what}; set TMPDIR to a folder on a disk with more room")


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"


# --- memory


def available_memory() -> int:
    """Bytes that this process can still take: free ones, within its limits and those of its cgroups."""
    rooms = [_free_memory(), _data_limit(), *_cgroup_rooms()]
    return max(0, min(room for room in rooms if room is not None))


def _free_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (OSError, ValueError, AttributeError):
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        except (OSError, ValueError, AttributeError):  # Windows
            return 1 << 33


def _data_limit() -> int | None:
    """What `ulimit -d` leaves, which counts memory but no files."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
    except (ImportError, OSError):
        return None
    used = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    return limit - used


def _cgroup_rooms(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What the limits of this process's cgroups leave, of version 2 and 1, on every level up to the root.

    The files of a cgroup that are kept in memory are not counted: the system can drop them.
    """
    rooms = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder, names = root, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            names += ("total_inactive_file", "total_active_file")
            folder = root / "memory"
        else:
            continue
        place = Path(path.lstrip("/"))
        for level in (place, *place.parents):
            room = _cgroup_room(folder / level, *names)
            if room is not None:
                rooms.append(room)
    return rooms


def _cgroup_room(folder: Path, limit: str, usage: str, *files: str) -> int | None:
    try:
        most = int((folder / limit).read_text())  # fails for "max"
        used = int((folder / usage).read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return most - used + sum(int(counts.get(name, 0)) for name in files)
    except (OSError, ValueError):
        return None
