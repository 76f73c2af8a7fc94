"""What lies in a folder of data sets, and what a folder of packs can add to it."""

from pathlib import Path

from apportion.data.adult import ADULT_COPIES, ADULT_SUMS, check_rows, find_adult, rows
from apportion.data.archives import read_file
from apportion.data.copies import find
from apportion.data.pack import import_pack, write_whole
from apportion.data.sets import IMAGE_SETS
from apportion.errors import DataError


def at_hand(folder: Path) -> dict[str, Path | None]:
    """Where each known set lies, None for those that are not there; nothing is read or checked."""
    places: dict[str, Path | None] = {}
    for name, spec in IMAGE_SETS.items():
        found = find(spec, folder)
        places[name] = found[0] if found else None
    paths = find_adult(folder / "adult")
    return places | {"adult": paths[0] if paths else None}


def packed(pack_dir: Path) -> list[str]:
    """The sets of which a pack lies in the folder."""
    names = [name for name in (*IMAGE_SETS, "adult") if (pack_dir / f"{name}.json").is_file()]
    if not names:
        raise DataError(f"no packs in {pack_dir}: a pack has a manifest such as cifar10.json")
    return names


def import_named(name: str, pack_dir: Path, folder: Path) -> Path:
    """The folder into which the set was imported."""
    if name in IMAGE_SETS:
        return import_pack(IMAGE_SETS[name], pack_dir, folder)
    if name != "adult":
        raise DataError(f"no data set {name!r}; there are {', '.join((*IMAGE_SETS, 'adult'))}")
    for file, expected in zip(ADULT_COPIES[0], ADULT_SUMS, strict=True):
        path = pack_dir / file
        check_rows(rows(read_file(path, 1 << 23), str(path)), expected, path)
        write_whole(folder / "adult" / file, path.read_bytes())
    return folder / "adult"
