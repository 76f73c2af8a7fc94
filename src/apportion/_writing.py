"""Writers that lose no data, and locks.

A file or folder is written beside its final place, synced, and then renamed: after a crash the old content is
there, or the new, never a part. A place is checked before hours of work, not after. A lock ends with the
process that holds it. All raise the caller's `error`, which names the place and what to do.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apportion._untrusted import reason_of
from apportion.errors import ApportionError

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PARTIAL = ".apportion-partial"
_LONGEST_NAME = 255  # bytes, on every common file system


@contextmanager
def explain_write_errors(
    path: Path, *, error: type[ApportionError], hint: str = "name another place"
) -> Iterator[None]:
    """Turn an OSError into `error`, with what to do: make room on a full disk, else `hint`."""
    try:
        yield
    except OSError as problem:
        if problem.errno in _FULL_DISK:
            raise error(f"{path} cannot be written: the disk is full; make room, or {hint}") from problem
        raise error(f"{path} cannot be written: {reason_of(problem)}; {hint}") from problem


def check_writable_place(path: Path, *, folder: bool = False, error: type[ApportionError]) -> None:
    """Raise now if a file, or a new folder, could not be written there later, after hours of work.

    A file may exist and is replaced then. A folder may exist if it is empty. The check creates missing
    parents and removes them again.
    """
    with explain_write_errors(path, error=error):
        created = _create_parents(path)
        try:
            _check_name(path, folder, error)
            partial = _partial_path(path)
            _remove(partial)
            partial.touch(exist_ok=False)
            partial.unlink()
        finally:
            for parent in created:
                parent.rmdir()


def _check_name(path: Path, folder: bool, error: type[ApportionError]) -> None:
    """What stands at `path` must not be in the way."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode  # OSError for a name that is too long
        if stat.S_ISLNK(mode):
            raise error(f"{path} is a symbolic link; name the place itself, or another one")
        if folder and not stat.S_ISDIR(mode):
            raise error(f"{path} exists and is not a folder; name another folder")
        if folder and path.samefile(Path()):
            raise error(f"{path} is the current folder; name a new folder in it")
        if folder and any(path.iterdir()):
            raise error(f"{path} exists and is not empty; name another folder, or remove it")
        if not folder and not stat.S_ISREG(mode):
            raise error(f"{path} exists and is not a regular file; name another file")


def _create_parents(path: Path) -> list[Path]:
    """Create the missing parents of a path; returns them, the innermost first."""
    missing = []
    parent = path.parent
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    created: list[Path] = []
    try:
        for each in reversed(missing):
            each.mkdir()
            created.insert(0, each)
    except OSError:
        for each in created:
            each.rmdir()
        raise
    return created


def _partial_path(path: Path) -> Path:
    """Where a file or folder is written before it takes its name. Fixed, so that the next save clears it."""
    name = path.name
    if len(os.fsencode(name + _PARTIAL)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return path.with_name(name + _PARTIAL)


def _remove(partial: Path) -> None:
    """Remove what a killed save left."""
    if partial.is_dir() and not partial.is_symlink():
        shutil.rmtree(partial)
    else:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_file(
    path: Path, *, error: type[ApportionError], hint: str = "name another place"
) -> Iterator[Path]:
    """The path of an empty file beside `path`, which takes its place at the end; a failure leaves nothing."""
    with explain_write_errors(path, error=error, hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_name(path, False, error)
        partial = _partial_path(path)
        _remove(partial)
        partial.touch(exist_ok=False)
        try:
            yield partial
            _sync(partial)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def atomic_write(
    path: Path, content: bytes, *, error: type[ApportionError], hint: str = "name another place"
) -> None:
    """Write a file whole or not at all."""
    with atomic_file(path, error=error, hint=hint) as partial:
        partial.write_bytes(content)


@contextmanager
def atomic_folder(
    path: Path, *, error: type[ApportionError], hint: str = "name another place"
) -> Iterator[Path]:
    """A new folder beside `path` for files (no folders), which takes its name at the end.

    `path` must not exist, or be an empty folder. A failure leaves nothing.
    """
    with explain_write_errors(path, error=error, hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_name(path, True, error)
        partial = _partial_path(path)
        _remove(partial)
        partial.mkdir()
        ours = partial.stat().st_ino
        try:
            yield partial
            for file in partial.iterdir():
                _sync(file)
            _sync(partial)
            if partial.stat().st_ino != ours:
                raise error(f"another process is writing {path}; wait for it, or name another folder")
            if path.exists():
                path.rmdir()
            partial.replace(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a folder, survive a power cut."""
    if os.name != "posix" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- locks


@contextmanager
def open_lock(path: Path, *, error: type[ApportionError]) -> Iterator[None]:
    """Hold a lock that the system releases when its process dies; raises if another process holds it."""
    from filelock import FileLock, Timeout

    _check_lock(path, error)
    lock = FileLock(path)
    with explain_write_errors(path, error=error):
        try:
            lock.acquire(timeout=0.2, poll_interval=0.02)  # whoever asks `is_locked` holds it for a moment
        except Timeout:
            raise error(f"{path.parent} is in use by another process; wait for it, or stop it") from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who waits for it notices, and makes a new file
        lock.release()


def is_locked(path: Path, *, error: type[ApportionError]) -> bool:
    """Whether a living process holds the lock; a file that a killed process left does not count."""
    from filelock import FileLock, Timeout

    _check_lock(path, error)
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True  # OSError: there are no locks here, or not for us, and the file is all that can be seen
    lock.release()
    return False


def _check_lock(path: Path, error: type[ApportionError]) -> None:
    """A lock is an empty file. Anything else in its place is refused before it is opened."""
    with suppress(FileNotFoundError):
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size:
            raise error(f"{path} is not a lock, which is an empty file; move it away")
