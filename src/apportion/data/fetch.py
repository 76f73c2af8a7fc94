"""Downloads with pooch: several addresses in turn, nothing kept that has not its checksum."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from apportion.data.adult import ADULT_DOWNLOADS
from apportion.data.sets import IMAGE_SETS, Download
from apportion.errors import DataError

DOWNLOADS = {name: spec.downloads for name, spec in IMAGE_SETS.items()} | {"adult": ADULT_DOWNLOADS}
Report = Callable[[str, int, int], None]  # file, bytes so far, bytes in all


def fetch(name: str, folder: Path, report: Report) -> Path:
    """The folder of a set, once all its files are there; those that are right are not fetched again."""
    if name not in DOWNLOADS:
        raise DataError(f"no data set {name!r}; there are {', '.join(sorted(DOWNLOADS))}")
    for item in DOWNLOADS[name]:
        fetch_file(item, folder / name, report)
    return folder / name


def fetch_file(item: Download, folder: Path, report: Report) -> None:
    """Puts one published file into the folder, or says where to get it."""
    try:
        import pooch
    except ImportError:
        raise DataError(f"fetching needs pooch: pip install pooch; or {_by_hand(item, folder)}") from None
    pooch.get_logger().setLevel("WARNING")
    failures = []
    for url in item.urls:
        meter = _Meter(item, report)
        # identity: a server that packs or unpacks on the way would change the checksum
        headers = {"Accept-Encoding": "identity", "User-Agent": "apportion"}
        download: Any = pooch.HTTPDownloader(
            progressbar=meter, chunk_size=1 << 16, timeout=30, headers=headers
        )
        try:
            pooch.retrieve(url, f"sha256:{item.sha256}", item.file, folder, downloader=download)
            return
        except (OSError, ValueError) as error:  # no network, not found, a wrong checksum, too long
            failures.append(f"  {url}: {error}")
    reasons = "\n".join(failures)
    raise DataError(f"{item.file} could not be fetched:\n{reasons}\n{_by_hand(item, folder)}")


def _by_hand(item: Download, folder: Path) -> str:
    return f"put {item.file} (sha256 {item.sha256}, from {item.urls[0]}) into {folder} yourself"


class _Meter:
    """What pooch takes for a progress bar; it also stops a server that sends more than the file has."""

    def __init__(self, item: Download, report: Report) -> None:
        self.item, self.report, self.done, self.total = item, report, 0, 0

    def update(self, n: int) -> None:
        self.done += n  # pooch counts a whole chunk for a smaller one, so the limit is a generous one
        if self.done > 2 * self.item.size + (1 << 20):
            raise DataError(f"more than the {self.item.size} bytes that {self.item.file} has")
        self.report(self.item.file, min(self.done, self.item.size), self.item.size)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.report(self.item.file, self.item.size, self.item.size)
