"""Every data set by name: load it, download it, or find out where it is."""

import inspect
from collections.abc import Callable
from pathlib import Path

from apportion._register import register
from apportion.datasets.adult import ADULT_DOWNLOADS, adult, find_adult
from apportion.datasets.download import Download, Report, fetch_file
from apportion.datasets.images import IMAGE_SETS, find_copy, load_images
from apportion.datasets.instances import Instances, check_instances
from apportion.datasets.synthetic import blobs, digits, moons
from apportion.errors import DataError, SettingsError

SYNTHETIC: dict[str, Callable[[int], Instances]] = {"moons": moons, "blobs": blobs, "digits": digits}
DOWNLOADS: dict[str, tuple[Download, ...]] = {
    **{name: images.downloads for name, images in IMAGE_SETS.items()},
    "adult": ADULT_DOWNLOADS,
}
DATASETS = (*SYNTHETIC, *DOWNLOADS)
OTHERS: dict[str, Callable[[int], Instances]] = {}  # from outside, by `register_dataset`


def register_dataset(name: str, load: Callable[[int], Instances]) -> None:
    """Make a data set available by name, as in recipes.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and underscores.
    load : callable
        `load(seed) -> Instances`. The seed is that of the run; real data can ignore it.
    """
    if name in DATASETS and name not in OTHERS:
        raise SettingsError(f"there is another data set named {name!r}; choose another name")
    if callable(load):
        try:
            inspect.signature(load).bind(0)
        except TypeError:
            raise SettingsError(
                f"the function of the data set {name!r} takes no seed; define it as {name}(seed)"
            ) from None
    register(OTHERS, "data set", name, load)


def dataset_names() -> tuple[str, ...]:
    """The names of all data sets."""
    return (*DATASETS, *OTHERS)


def depends_on_seed(name: str) -> bool:
    """Whether another seed may give other instances."""
    return name in SYNTHETIC or name in OTHERS


def load_dataset(name: str, folder: Path | None = None, seed: int = 0) -> Instances:
    """The data set of that name. Real data comes from `folder`; the seed is for synthetic data."""
    if name in SYNTHETIC:
        return SYNTHETIC[name](seed)
    if name in IMAGE_SETS:
        return load_images(IMAGE_SETS[name], folder)
    if name == "adult":
        return adult(folder)
    if name in OTHERS:
        try:
            data = OTHERS[name](seed)
        except TypeError as error:
            if not str(error).startswith("Instances.__init__()"):
                raise
            raise DataError(f"the data set {name!r} is not complete: {error}") from error
        return check_instances(name, data)
    raise DataError(f"there is no data set {name!r}; choose one of {', '.join(dataset_names())}")


def fetch_dataset(name: str, folder: Path, report: Report) -> Path:
    """Download what is missing of a data set into its own folder, and return that folder."""
    if name not in DOWNLOADS:
        raise DataError(f"there is no data set {name!r} to download; choose one of {', '.join(DOWNLOADS)}")
    for item in DOWNLOADS[name]:
        fetch_file(item, folder / name, report)
    return folder / name


def find_dataset(name: str, folder: Path) -> Path | None:
    """A file of the copy that `load_dataset` would read, or None. The copy is neither read nor checked."""
    found = find_copy(IMAGE_SETS[name], folder) if name in IMAGE_SETS else find_adult(folder / "adult")
    return None if found is None else found[0]
