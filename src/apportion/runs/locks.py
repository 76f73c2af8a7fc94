"""One process a run folder: a lock that the system itself lets go of when its owner dies."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from apportion.errors import RunError
from apportion.runs.files import writing

try:
    import fcntl
except ImportError:  # Windows: there a second process is not kept out
    fcntl = None


LOOKS = 5  # at a lock that is taken: whoever asks `in_use` holds it for a moment


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


def in_use(folder: Path) -> bool:
    """Whether a living process holds the folder; a file alone, as SIGKILL leaves it, says nothing."""
    try:
        with (folder / "lock").open("rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who look do not meet
                return False  # closing lets go of it
    except FileNotFoundError:
        return False
    except OSError:
        pass  # held; or there are no locks here, or not for us, and the file is all that can be seen
    return True


def _held(path: Path) -> IO[str]:
    tries = 0
    while True:
        with writing(path):
            file = path.open("a+", encoding="utf-8", errors="replace")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                break
        except BlockingIOError:
            tries += 1
            if tries < LOOKS:
                file.close()
                time.sleep(0.02)
                continue
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
