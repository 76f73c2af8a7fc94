"""The forms in which people give proportions: labels, labels in bags, shares a row, a table of the bags."""

from typing import Any

import numpy as np

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.filling import without_residue
from apportion.intake.grouping import bags_of, table_rows
from apportion.intake.ids import Groups, groups_of
from apportion.intake.instances import as_instances, check_classes, library_of, unmasked
from apportion.intake.named import column_names, framed
from apportion.intake.remedies import ESTIMATOR, EXPANDING, Way
from apportion.intake.sound import checked_shares


def bags_from(
    x: Any, y: Any = None, ids: Any = None, *, proportions: Any = None, counts: Any = None,
    classes: Any = None, way: Way = ESTIMATOR,
) -> tuple[Bags, np.ndarray]:  # fmt: skip
    """Bags and the sorted classes that their columns stand for, from one of four forms.

    1. `y` (N,) labels: bags of one, which is supervised learning.
    2. `y` and `ids` (N,): the proportions of every bag are counted, the labels are not used again.
    3. `y` (N, k) and `ids`: each row holds the proportions of its own bag. Columns of a DataFrame are read by
       their names; those of an array are by the sorted classes.
    4. `ids` and a table of `proportions` or `counts`: {bag: vector}, {bag: {class: number}}, a DataFrame
       whose columns are classes, or an array.
    """
    x, (y, classes) = as_instances(x), rows_by_name(y, classes)
    labels = None if y is None else np.asarray(y)
    one_source(labels, proportions if counts is None else counts)
    if ids is None and (labels is None or labels.ndim > 1):
        raise DataError("proportions are those of bags; pass bags=, the bag id of every row")
    groups = groups_of(ids, len(x))
    if labels is None:
        shares, classes = table_shares(proportions, counts, groups, classes, way=way)
    elif labels.ndim == 1:
        shares, classes = _counted(labels, groups, classes)
    else:
        shares, classes = _agreed(labels, groups), _sorted_classes(classes, labels.shape[1])
    return bags_of(x, groups, checked_shares(shares, groups, False, classes, way)), classes


def one_source(y: Any, table: Any) -> None:
    """Refuse labels beside a table, and neither of them."""
    if (y is None) == (table is None):
        what = "neither" if y is None else "both"
        raise DataError(f"{what} of y and a table is given; pass y, or bags with proportions or counts")


def expand_proportions(
    proportions: Any = None, bags: Any = None, *, counts: Any = None, classes: Any = None
) -> Any:
    """The proportions of each row's own bag, (N, k): the form that cross-validation can cut into folds.

    The columns follow the sorted classes; of a DataFrame it is a DataFrame, which keeps their names, and has
    the index of the bags where these are a pandas Series. The table may be one of `counts`.
    """
    if bags is None:
        raise DataError("bags is missing; pass bags=, the bag id of every row")
    groups = groups_of(bags, len(bags))
    shares, classes = table_shares(proportions, counts, groups, classes, way=EXPANDING)
    rows = checked_shares(shares, groups, False, classes, EXPANDING)[groups[1]]
    return framed(rows, counts if proportions is None else proportions, classes, bags)


def table_shares(
    proportions: Any, counts: Any, groups: Groups, classes: Any, **form: Any
) -> tuple[np.ndarray, np.ndarray]:
    """`table_rows`, which takes `form`, with columns sorted by class, and the classes."""
    rows, classes = table_rows(proportions, counts, groups, classes, **form)
    if rows.ndim != 2 or classes is None:
        return rows, np.arange(rows.shape[-1])
    found = _checked_classes(classes, rows.shape[1])
    order = np.argsort(found, kind="stable")
    return rows[:, order], found[order]


def rows_by_name(y: Any, classes: Any) -> tuple[Any, Any]:
    """Shares (N, k) of rows with their columns in the order of the sorted classes, and these classes; where
    columns have no names, both are as they were."""
    names = column_names(y)
    if names is None:
        return unmasked(y), classes
    check_classes(names)
    by_columns(y, classes, "Y")  # other names are refused
    return by_columns(y, sorted(names), "Y")


def by_columns(frame: Any, classes: Any, what: str) -> tuple[Any, Any]:
    """A frame with its columns in the order of the classes, and these: its own names, if none are asked."""
    names = column_names(frame)
    if names is None:
        return frame, classes
    asked = names if classes is None else np.asarray(classes, dtype=object).tolist()
    if len(set(names)) < len(names) or set(asked) != set(names):
        remedy = "name the same, each once, or pass its to_numpy(), a column a class in their order"
        raise DataError(f"{what} has the columns {names}, but the classes are {asked}; {remedy}")
    places = [names.index(name) for name in asked]
    return frame.iloc[:, places] if library_of(frame) == "pandas" else frame[:, places], asked


def _counted(y: np.ndarray, groups: Groups, classes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shares (m, k) counted from labels, and the sorted classes; `classes` may hold some that y lacks."""
    names, number, sizes = groups
    if len(y) != len(number):
        raise DataError(f"there are {len(number)} instances but {len(y)} labels; pass one label an instance")
    found, code = np.unique(y, return_inverse=True)
    if classes is not None:
        known = np.unique(np.asarray(classes))
        for name in np.setdiff1d(found, known).tolist():
            raise DataError(f"the label {name!r} is not among the classes {known.tolist()}; add it")
        found, code = known, np.searchsorted(known, found)[code]
    if len(found) < 2:
        raise DataError(f"all labels are of one class, {found.tolist()}; pass classes= with all there are")
    counts = np.bincount(number * len(found) + code, minlength=len(names) * len(found))
    return counts.reshape(len(names), -1) / sizes[:, None], found


def _agreed(rows: np.ndarray, groups: Groups) -> np.ndarray:
    """One row of shares a bag, where all rows of the bag say the same."""
    names, number, _ = groups
    if len(rows) != len(number):
        raise DataError(f"there are {len(number)} instances but {len(rows)} rows of shares; pass one each")
    shares = without_residue(rows[np.unique(number, return_index=True)[1]].astype(np.float64))
    for i in np.flatnonzero((np.abs(rows - shares[number]) > 1e-6).any(1))[:1].tolist():
        one, other = (np.round(each.astype(float), 6).tolist() for each in (shares[number[i]], rows[i]))
        both = f"{one} and, in row {i}, {other}"
        remedy = "every row holds the proportions of its whole bag, see expand_proportions"
        raise DataError(f"bag {names[number[i]]!r} has rows that disagree: {both}; {remedy}")
    return shares


def _sorted_classes(classes: Any, k: int) -> np.ndarray:
    found = np.arange(k) if classes is None else _checked_classes(classes, k)
    if (found[1:] < found[:-1]).any():
        remedy = f"order columns and classes as {np.sort(found).tolist()}, as expand does"
        raise DataError(f"the classes {found.tolist()} are not sorted, and scorers could not know; {remedy}")
    return found


def _checked_classes(classes: Any, k: int) -> np.ndarray:
    check_classes(classes)
    found = np.asarray(classes)
    if len(found) != k or len(np.unique(found)) != k:
        raise DataError(f"there are {k} columns of shares but the classes {found.tolist()}; name each once")
    return found
