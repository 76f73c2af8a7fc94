"""How long a run that another process is making is waited for: as long as something is written there."""

import time
from contextlib import suppress
from pathlib import Path

from apportion import runs

QUIET_SECONDS = 1800.0  # at the least: a first epoch may take long
QUIET_EPOCHS = 5  # of the longest so far


class Patience:
    """It ends where a folder has been quiet for too long: its owner may be suspended, and would hold up
    those who wait for ever."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stamp, self.since = folder, -1.0, time.monotonic()

    def ends(self) -> bool:
        stamp = _changed(self.folder)
        if stamp != self.stamp:  # by this clock alone: that of a file server may be wrong
            self.stamp, self.since = stamp, time.monotonic()
        return time.monotonic() - self.since > self.limit()

    def limit(self) -> float:
        longest = 0.0
        with suppress(runs.RunError, KeyError, TypeError, AttributeError):  # no log, or a line being written
            spent = (sum(line["seconds"].values()) for line in runs.read_log(self.folder))
            longest = max(spent, default=0.0)
        return max(QUIET_SECONDS, QUIET_EPOCHS * longest)

    def __str__(self) -> str:
        return f"nothing has been written there for {(time.monotonic() - self.since) / 60:.0f} minutes"


def _changed(folder: Path) -> float:
    """When a file of the folder was last written; 0 where one, or the folder, is gone in between."""
    with suppress(OSError):
        return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
    return 0.0
