"""One process a run folder: a lock that the system itself lets go of when its owner dies."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from apportion.runs.files import RunError, writing

try:
    import fcntl
except ImportError:  # Windows: there a second process is not kept out
    fcntl = None


class InUse(RunError):
    """A folder that another process is training in."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder that exists; a second process is refused. What a killed one left is no hindrance."""
    path = folder / "lock"
    file = _held(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        file.close()  # only now may another take the name


def _held(path: Path) -> IO[str]:
    while True:
        with writing(path):
            file = path.open("a+", encoding="utf-8", errors="replace")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                break
        except BlockingIOError:
            file.seek(0)
            owner = file.read(200).strip() or "another process"
            file.close()
            raise InUse(f"{path.parent} is in use by {owner}; wait for it, or stop it") from None
        except FileNotFoundError:
            pass  # its owner finished and took the name away in between
        except OSError:
            break  # a file system without locks: better unguarded than unusable
        file.close()
    with writing(path):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
    return file
