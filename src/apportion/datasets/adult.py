"""Adult (UCI): 32,561 + 16,281 people from the US census of 1994, and who earns more than 50,000 dollars."""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch

from apportion._untrusted import read_bytes, read_gzip
from apportion.datasets.download import Download, default_folder, download_hint
from apportion.datasets.instances import Instances
from apportion.errors import DataError

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_DOWNLOADS = tuple(
    Download(file, size, sha256, (_UCI + file,))
    for file, size, sha256 in (
        ("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
)
ADULT_FILES = (("adult_train.csv.gz", "adult_test.csv.gz"), ("adult.data", "adult.test"))
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
    """Standardized numbers and one-hot categories, fitted on the training part; `?` is a category."""
    return encode_rows(*read_adult(folder))


def read_adult(folder: Path | None = None) -> tuple[Rows, Rows]:
    """The fields of the training and the test part as text, 15 per person."""
    folder = folder or default_folder()
    paths = find_adult(folder / "adult")
    hint = download_hint("adult", folder, ADULT_DOWNLOADS)
    if paths is None:
        raise DataError(f"there is no copy of adult in {folder / 'adult'}; {hint}")
    try:
        train, test = (parse_rows(_read(path), str(path)) for path in paths)
        for part, path, expected in zip((train, test), paths, ADULT_SUMS, strict=True):
            _check_sum(part, expected, path)
    except DataError as error:
        raise DataError(f"{error}; {hint}") from None
    return train, test


def find_adult(folder: Path) -> tuple[Path, Path] | None:
    """The training and test file of the first copy in the folder."""
    for train, test in ADULT_FILES:
        if (folder / train).is_file() and (folder / test).is_file():
            return folder / train, folder / test
    return None


def _read(path: Path) -> bytes:
    if path.suffix == ".gz":
        return read_gzip(path, _LIMIT, error=DataError)
    return read_bytes(path, _LIMIT, error=DataError, follow_symlinks=True)


def _check_sum(rows: Rows, expected: str, path: Path) -> None:
    """Check the rows themselves, so that it does not matter how the file formats them."""
    found = hashlib.sha256("".join(",".join(row) + "\n" for row in rows).encode()).hexdigest()
    if found != expected:
        raise DataError(f"{path} is damaged: its rows have sha256 {found}, expected {expected}")


def parse_rows(data: bytes, name: str) -> Rows:
    """The fields of each person, without the header, comments, and the full stops of UCI's test file."""
    rows: Rows = []
    for line in data.decode("ascii", "replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if fields == [""] or fields[0] == "age" or line.startswith("|"):
            continue
        fields[-1] = fields[-1].removesuffix(".")
        if len(fields) != 15 or fields[-1] not in CLASSES or max(map(len, fields)) > 64:
            raise DataError(f"{name} has a line that does not describe a person: {line[:80]!r}")
        rows.append(fields)
    if not rows:
        raise DataError(f"{name} has no rows")
    return rows


def encode_rows(train: Rows, test: Rows) -> Instances:
    """Features fitted on the training part; a category that only occurs in the test part is all zeros."""
    columns = np.array(train).T  # (15, n) of text
    test_columns = np.array(test).T
    numbers = _numbers(columns)
    mean = numbers.mean(0)
    std = numbers.std(0)
    std = np.where(std > 0, std, 1.0)
    categories = {c: np.unique(columns[c]) for c in _CATEGORIES}

    def features(part: np.ndarray) -> torch.Tensor:
        one_hot = [part[c][:, None] == categories[c] for c in _CATEGORIES]
        return torch.from_numpy(np.hstack([(_numbers(part) - mean) / std, *one_hot]).astype(np.float32))

    def labels(part: np.ndarray) -> torch.Tensor:
        return torch.from_numpy((part[-1] == CLASSES[1]).astype(np.int64))

    return Instances(
        "adult", features(columns), labels(columns), features(test_columns), labels(test_columns), CLASSES
    )


def _numbers(columns: np.ndarray) -> np.ndarray:
    """The numeric columns, (n, 6) float64."""
    try:
        values = [[float(text) for text in columns[c]] for c in _NUMBERS]
    except ValueError as error:
        raise DataError(f"a numeric column of adult has a value that is not a number: {error}") from None
    if not all(math.isfinite(value) for column in values for value in column):
        raise DataError("a numeric column of adult has a value that is not finite")
    return np.array(values).T
