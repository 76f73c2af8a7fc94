"""Downloads of published files with pooch: several addresses in turn, nothing kept without its checksum."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.errors import DataError

Report = Callable[[str, int, int], None]  # file name, bytes so far, bytes in total


@dataclass(frozen=True)
class Download:
    """A published file. The addresses are tried in turn; the checksum decides what is accepted."""

    file: str
    size: int  # bytes
    sha256: str
    urls: tuple[str, ...]


def default_folder() -> Path:
    """Where data sets are kept: $APPORTION_DATA, or the user's cache."""
    named = os.environ.get("APPORTION_DATA")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apportion"


def download_hint(name: str, folder: Path, downloads: tuple[Download, ...]) -> str:
    """How to get a missing or damaged set: the command, or the files with checksums and addresses."""
    files = "\n".join(f"  {item.file}  sha256 {item.sha256}  {item.urls[0]}" for item in downloads)
    command = f"apportion data fetch {name} --data {folder}"
    return f"run `{command}`, or put these files into {folder / name}:\n{files}"


def fetch_file(item: Download, folder: Path, report: Report) -> None:
    """Download one file into the folder, unless it is there with the right checksum."""
    try:
        import pooch
    except ImportError:
        raise DataError(
            f"downloads need pooch; pip install 'apportion[cli]', or {_by_hand(item, folder)}"
        ) from None
    pooch.get_logger().setLevel("WARNING")
    failures = []
    for url in item.urls:
        # identity: a server that compresses the file would change its checksum
        headers = {"Accept-Encoding": "identity", "User-Agent": "apportion"}
        downloader: Any = pooch.HTTPDownloader(
            progressbar=_Meter(item, report), chunk_size=1 << 16, timeout=30, headers=headers
        )
        try:
            pooch.retrieve(url, f"sha256:{item.sha256}", item.file, folder, downloader=downloader)
            return
        except (OSError, ValueError) as error:  # no network, not found, wrong checksum, too long
            failures.append(f"  {url}: {error}")
    reasons = "\n".join(failures)
    raise DataError(f"{item.file} could not be downloaded:\n{reasons}\n{_by_hand(item, folder)}")


def _by_hand(item: Download, folder: Path) -> str:
    return f"put {item.file} (sha256 {item.sha256}, from {item.urls[0]}) into {folder} yourself"


class _Meter:
    """The progress bar that pooch calls. It also stops a server that sends more than the file has."""

    def __init__(self, item: Download, report: Report) -> None:
        self.item = item
        self.report = report
        self.done = 0
        self.total = 0  # set by pooch

    def update(self, n: int) -> None:
        self.done += n  # pooch counts a short chunk as a whole one, so the limit is generous
        if self.done > 2 * self.item.size + (1 << 20):
            raise DataError(f"the server sends more than the {self.item.size} bytes of {self.item.file}")
        self.report(self.item.file, min(self.done, self.item.size), self.item.size)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.report(self.item.file, self.item.size, self.item.size)
