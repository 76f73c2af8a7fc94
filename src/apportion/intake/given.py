"""Labels of a few single rows that are known beside the proportions of the bags."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from apportion.bags.bags import Bags
from apportion.errors import DataError
from apportion.intake.instances import library_of


@dataclass(frozen=True)
class GivenBag:
    """The name of a bag of given labels, which no bag of a user's can have."""

    number: int

    def __repr__(self) -> str:
        return f"given labels {self.number}"


def placed_labels(given: Any, x: Any, bags: Any = None) -> Any:
    """{row: class} from a pandas series whose index names rows as that of `x` does, or of `bags` where `x`
    has none, or else by their places; rows without a class are left out. What is no series is as it was."""
    if isinstance(bags, Mapping):  # several groupings, of which the first that has an index speaks for all
        bags = next((each for each in bags.values() if _has_index(each)), 0)
    if library_of(given) != "pandas" or type(given).__name__ != "Series":
        return given
    indexed = [(each, who) for each, who in ((x, "X"), (bags, "bags")) if _has_index(each)]
    there, rows, names = given.notna().to_numpy(), given.index.tolist(), given.tolist()
    if indexed and given.index.equals(indexed[0][0].index):
        rows = list(range(len(given)))
    elif indexed:
        rows = _places(given.index, there, *indexed[0])
    elif len(rows) == len(x) and rows != list(range(len(x))):
        remedy = "pass X as a DataFrame with this index, or given.reset_index(drop=True) if rows are in order"
        raise DataError(f"given has all {len(x)} rows, but X has no index to find {rows[0]!r} by; {remedy}")
    found: dict[Any, Hashable] = {}
    for i in np.flatnonzero(there).tolist():
        if rows[i] in found:
            raise DataError(
                f"given has row {given.index.tolist()[i]!r} twice in its index; keep one label a row"
            )
        found[rows[i]] = names[i]
    return found


def refuse_another_order(
    x: Any, bags: Any, who: str = "X", *, counted: bool = True, called: str = "bags"
) -> None:
    """Rows are matched by their places; two pandas indices with the same rows in another order say others.

    Unless `counted`, an index that only counts its rows says nothing, as that of a frame made of an array.
    """
    if isinstance(bags, Mapping):  # several groupings, which may differ among themselves as well
        indexed = [(f"bags[{name!r}]", each) for name, each in bags.items() if _has_index(each)]
        for one, each in indexed:
            refuse_another_order(x, each, who, counted=counted)
            refuse_another_order(indexed[0][1], each, indexed[0][0], called=one)
        return
    if not counted and type(getattr(x, "index", None)).__name__ == "RangeIndex":
        return
    if not (_has_index(x) and _has_index(bags)) or len(x) != len(bags) or x.index.equals(bags.index):
        return
    if x.index.is_unique and bags.index.isin(x.index).all() and bags.index.is_unique:
        remedy = f"pass {called}.loc[{who}.index], or {called}.to_numpy() if it is in the order of {who}"
        first = bags.index[:1].tolist()[0]
        raise DataError(f"{called} has the rows of {who} in another order, {first!r} first; {remedy}")


def _has_index(values: Any) -> bool:
    return library_of(values) == "pandas" and type(values).__name__ in ("DataFrame", "Series")


def _places(index: Any, there: np.ndarray, frame: Any, who: str) -> list[int]:
    """The place of each row of an index in that of a frame, where it is `there`."""
    for row in frame.index[frame.index.duplicated()][:1].tolist():
        remedy = "pass reset_index(drop=True) of it, and given by the places of its rows"
        raise DataError(f"the index of {who} has {row!r} twice, and given is found by it; {remedy}")
    places = frame.index.get_indexer(index)
    for i in np.flatnonzero((places < 0) & there)[:1].tolist():
        remedy = "drop it, or pass {row: class}, rows counted from 0"
        raise DataError(
            f"a label is given for row {index.tolist()[i]!r}, which is not in the index of {who}; {remedy}"
        )
    return places.tolist()


def given_rows(given: Any, n: int) -> dict[int, Hashable]:
    """{row: class} from a dict, rows as whole numbers of any type."""
    if not isinstance(given, Mapping | None):
        raise DataError(f"given is a {type(given).__name__}; pass {{row: class}}, rows counted from 0")
    found = {}
    for row, name in (given or {}).items():
        number = isinstance(row, int | float | np.number) and not isinstance(row, bool)
        if not number or not float(row).is_integer():
            remedy = "name rows by their place, from 0, such as X.index.get_loc(row) of a DataFrame"
            raise DataError(f"a label is given for row {row!r}; {remedy}")
        if not 0 <= row < n:
            raise DataError(f"a label is given for row {row}, but there are {n} rows")
        found[int(row)] = name
    return found


def with_given(bags: Bags, given: Mapping[int, Hashable], classes: np.ndarray, *, sure: bool = True) -> Bags:
    """Rows whose class is known in bags of their own, of one class each; old bags keep what is left.

    These bags are as large as the others: as bags of one, labels would outweigh all proportions in the loss.
    """
    n, k = len(bags.x), bags.n_classes
    place = torch.empty(n, dtype=torch.int64)
    place[bags.source] = torch.arange(n)
    code = {name: i for i, name in enumerate(classes.tolist())}
    given = given_rows(given, n)
    for row, name in given.items():
        if name not in code:
            raise DataError(
                f"row {row} is given the class {name!r}, which is not among {list(code)}; mend it or drop it"
            )
    rows = place[torch.tensor(list(given))]
    labels = torch.nn.functional.one_hot(torch.tensor([code[name] for name in given.values()]), k).double()
    bag = torch.repeat_interleave(bags.sizes)[rows]
    taken = torch.zeros(len(bags.sizes), k, dtype=torch.float64).index_add_(0, bag, labels)
    left = bags.proportions.double() * bags.sizes.unsqueeze(1) - taken
    for b, c in (left < -0.5).nonzero().tolist() if sure else ():
        what = f"has {int(taken[b, c])} rows that are given as {list(code)[c]!r}, more than its share allows"
        raise DataError(f"bag {bags.ids[b]!r} {what}; mend them, or pass noise= if shares are noisy")
    left, sizes = left.clamp_min(0), bags.sizes - taken.sum(1).long()
    shares = torch.where(left.sum(1, keepdim=True) > 0, left / left.sum(1, keepdim=True), 1 / k)
    shares = torch.where(bags.proportions.isnan(), math.nan, shares)
    others = torch.ones(n, dtype=torch.bool)
    others[rows] = False
    kept, most = (sizes > 0).nonzero().flatten(), int(bags.sizes.median())
    pure = [p for c in range(k) for p in rows[labels[:, c] == 1].split(most) if len(p)]
    order = torch.cat([others.nonzero().flatten(), *pure])
    ids = [*(bags.ids[i] for i in kept.tolist()), *map(GivenBag, range(len(pure)))]
    sizes = torch.cat([sizes[kept], torch.tensor([len(p) for p in pure])])
    label = torch.zeros(n, dtype=torch.int64).index_put_((rows,), labels.argmax(1))
    own = torch.nn.functional.one_hot(torch.stack([label[p[0]] for p in pure]), k)
    return Bags(
        bags.x[order], sizes, torch.cat([shares[kept], own]).float(), bags.source[order], ids,
        pure=torch.arange(len(ids)) >= len(kept),
    )  # fmt: skip
