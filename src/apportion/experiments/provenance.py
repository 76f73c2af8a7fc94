"""Where a number comes from: version, commit, sources, device; and whether a run still matches its name."""

import hashlib
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

import apportion

# folders of the package that cannot change a number: they read files and show results
NOT_TRAINING = ("cli", "report", "tables", "saving")


def describe_where(device: torch.device, exact: bool) -> dict[str, Any]:
    """What a number depends on besides the recipe.

    $APPORTION_COMMIT names the commit where git cannot, in a copy without its history. The checksum of the
    sources shows whether that copy was clean.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "apportion": apportion.__version__,
        "commit": _git_commit() or os.environ.get("APPORTION_COMMIT"),
        "sources": source_checksum(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
        "exact": exact,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def source_checksum(package: Path = Path(apportion.__file__).parent) -> str:
    """A checksum of the package's Python files that training depends on, 16 hexadecimal digits."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.split("/")[0] not in NOT_TRAINING:
            total.update(f"{name}\0".encode())
            total.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return total.hexdigest()[:16]


def most_common_sources(places: Iterable[Mapping[str, Any]]) -> str | None:
    """The checksum of sources that most of these runs have; None if none has one."""
    counts = Counter(str(where["sources"]) for where in places if where.get("sources"))
    return counts.most_common(1)[0][0] if counts else None


def _git_commit() -> str | None:
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # else it is a repository of something else
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    program = shutil.which("git")
    if program is None:
        raise FileNotFoundError("git")
    here = Path(apportion.__file__).parent
    # a fixed program with words from this file, and no shell
    done = subprocess.run([program, *words], cwd=here, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
