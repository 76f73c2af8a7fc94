"""Adult (UCI): 32,561 + 16,281 people of the US census of 1994, and who earns more than 50,000 dollars."""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch

from apportion.data.archives import read_file
from apportion.data.images import default_folder
from apportion.data.instances import Instances
from apportion.data.sets import Download
from apportion.errors import DataError

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_DOWNLOADS = tuple(
    Download(file, size, sha256, (_UCI + file,))
    for file, size, sha256 in (
        ("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
)
ADULT_COPIES = (("adult_train.csv.gz", "adult_test.csv.gz"), ("adult.data", "adult.test"))
ADULT_SUMS = (  # sha256 of the rows of each part, fields joined by commas, a line feed after each row
    "f0d0c191f02659cf884c3fa4a5abcb3e08180adab0f2708a07f12699e8bb9b9e",
    "137fbccdc879d3f2cc50199fead0bab4a14a3e042b3088d3611b6f7daa6e5f9f",
)
CLASSES = ("<=50K", ">50K")
_NUMBERS = (0, 2, 4, 10, 11, 12)  # age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week
_CATEGORIES = (1, 3, 5, 6, 7, 8, 9, 13)
_LIMIT = 1 << 23  # bytes; the larger file has 4 million

Rows = list[list[str]]


def adult(folder: Path | None = None) -> Instances:
    """Numbers standardized and categories one-hot, both as the training part has them; `?` is a category."""
    folder = (folder or default_folder()) / "adult"
    paths = find_adult(folder)
    if paths is None:
        raise DataError(f"no copy of adult in {folder}; {_remedy(folder)}")
    try:
        train, test = (rows(read_file(path, _LIMIT), str(path)) for path in paths)
        for part, path, expected in zip((train, test), paths, ADULT_SUMS, strict=True):
            check_rows(part, expected, path)
    except DataError as error:
        raise DataError(f"{error}; {_remedy(folder)}") from None
    return encoded(train, test)


def find_adult(folder: Path) -> tuple[Path, Path] | None:
    """The two files of the first copy in the folder."""
    copies = ((folder / train, folder / test) for train, test in ADULT_COPIES)
    return next((paths for paths in copies if all(path.is_file() for path in paths)), None)


def check_rows(part: Rows, expected: str, path: Path) -> None:
    """The rows have the sum that is known of them, whichever way the file spells them."""
    got = hashlib.sha256("".join(",".join(row) + "\n" for row in part).encode()).hexdigest()
    if got != expected:
        raise DataError(f"{path} is damaged: its rows have sha256 {got}, expected {expected}")


def _remedy(folder: Path) -> str:
    files = "\n".join(f"  {item.file}  sha256 {item.sha256}  {item.urls[0]}" for item in ADULT_DOWNLOADS)
    return (
        f"`apportion data fetch adult --data {folder.parent}` fetches it, `apportion data import` takes it "
        f"from a pack, or put it into {folder} yourself:\n{files}"
    )


def rows(data: bytes, what: str) -> Rows:
    """The fields of each person, without header, remarks, and the full stops of UCI's test file."""
    table: Rows = []
    for line in data.decode("ascii", "replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if fields == [""] or fields[0] == "age" or line.startswith("|"):
            continue
        fields[-1] = fields[-1].removesuffix(".")
        if len(fields) != 15 or fields[-1] not in CLASSES or max(map(len, fields)) > 64:
            raise DataError(f"{what} has a line that is no person: {line[:80]!r}")
        table.append(fields)
    if not table:
        raise DataError(f"{what} has no rows")
    return table


def encoded(train: Rows, test: Rows) -> Instances:
    """Features fitted on the training part alone: a category that only others have is all zeros."""
    columns, test_columns = np.array(train).T, np.array(test).T  # (15, n) texts
    numbers, test_numbers = (
        np.array([_floats(part[c]) for c in _NUMBERS]).T for part in (columns, test_columns)
    )
    mean, std = numbers.mean(0), numbers.std(0)
    std = np.where(std > 0, std, 1.0)
    known = {c: np.unique(columns[c]) for c in _CATEGORIES}
    features = []
    for part, values in ((columns, numbers), (test_columns, test_numbers)):
        one_hot = [part[c][:, None] == known[c] for c in _CATEGORIES]
        features.append(torch.from_numpy(np.hstack([(values - mean) / std, *one_hot]).astype(np.float32)))
    y, test_y = (
        torch.from_numpy((part[-1] == CLASSES[1]).astype(np.int64)) for part in (columns, test_columns)
    )
    return Instances("adult", features[0], y, features[1], test_y, CLASSES)


def _floats(column: np.ndarray) -> list[float]:
    try:
        values = [float(text) for text in column]
    except ValueError as error:
        raise DataError(f"a number of adult is none: {error}") from None
    if not all(map(math.isfinite, values)):
        raise DataError("a number of adult is not finite")
    return values
