"""Where a run was made: version, commit, device and time, without which a number cannot be made again."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import apportion


def where(device: torch.device, exact: bool) -> dict[str, Any]:
    """What made the numbers. A run without git at hand is told its commit by $APPORTION_COMMIT."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "apportion": apportion.__version__,
        "commit": os.environ.get("APPORTION_COMMIT") or _git_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
        "exact": exact,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _git_commit() -> str | None:
    try:
        return _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    here, program = Path(__file__).parent, shutil.which("git")
    if program is None:
        raise FileNotFoundError("git")
    # a fixed program with words from this file alone, and no shell
    done = subprocess.run([program, *words], cwd=here, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
