"""The bag of each row: ids of any hashable type become numbers, and errors name the row without one."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from apportion.errors import DataError
from apportion.intake.instances import is_missing, library_of, unmasked

Groups = tuple[Sequence[Hashable], np.ndarray, np.ndarray]  # names of bags, each row's bag, sizes


def groups_of(ids: Any, n: int) -> Groups:
    if ids is None:
        return range(n), np.arange(n), np.ones(n, np.int64)
    keys = keys_of(ids)
    if len(keys) != n:
        raise DataError(f"there are {n} instances but {len(keys)} bag ids; pass one id an instance")
    return numbered(keys)


def keys_of(ids: Any) -> Sequence[Hashable] | np.ndarray:
    ids = _one_each(ids)
    whole: Any = ids.cpu().numpy() if isinstance(ids, Tensor) else ids
    whole = whole.to_numpy() if library_of(ids) in ("pandas", "polars") else whole
    if isinstance(whole, np.ndarray) and whole.dtype.kind in "iu" and whole.ndim == 1:
        return unmasked(whole)  # a list of millions of numbers takes gigabytes
    values = ids.tolist() if isinstance(ids, np.ndarray | Tensor) else list(ids)
    for i, value in enumerate(values):
        try:
            hash(value)
        except TypeError as problem:
            what = f"instance {i} has a bag id that cannot be hashed ({value!r}); use a string or a number"
            raise DataError(what) from problem
        if is_missing(value):
            raise DataError(f"instance {i} has no bag id ({value!r}); name its bag or drop the instance")
    return values


def _one_each(ids: Any) -> Any:
    """Ids in one column, as a vector; errors for what would be taken for other ids than it has."""
    if isinstance(ids, str):
        raise DataError(f"bags is the text {ids!r}; pass the ids themselves, such as X.pop({ids!r})")
    if isinstance(ids, Mapping):
        what = f"bags is a dict, which names several groupings, {list(ids)[:3]}; only fit and meet take those"
        raise DataError(f"{what}, with a table of each: pass one of them here, or the bag id of every row")
    shape = tuple(getattr(ids, "shape", ()))
    if len(shape) < 2:
        return ids
    if shape[1:] != (1,):
        frame = library_of(ids) in ("pandas", "polars")
        remedy = "a column of them, or pandas.MultiIndex.from_frame(bags)" if frame else "one id an instance"
        apart = "bags.to_dict()" if library_of(ids) == "polars" else "dict(bags)"
        remedy += f"; {apart}, with a table of each, if rows lie in a bag of every column" if frame else ""
        raise DataError(f"bags have shape {shape}; pass {remedy}")
    if library_of(ids) == "polars":
        return ids.to_series()
    return ids.iloc[:, 0] if library_of(ids) == "pandas" else ids.reshape(-1)


def numbered(keys: Sequence[Hashable] | np.ndarray) -> tuple[list[Hashable], np.ndarray, np.ndarray]:
    """Sorted names (as they appear where they cannot be sorted), the number of each key, the sizes."""
    if isinstance(keys, np.ndarray):
        found, number, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        return found.tolist(), number, sizes
    names = list(dict.fromkeys(keys))
    with suppress(TypeError):  # ids of mixed types keep the order in which they appear
        names = sorted(names)  # type: ignore[type-var]
    place = {name: i for i, name in enumerate(names)}
    number = np.fromiter((place[key] for key in keys), dtype=np.int64, count=len(keys))
    return names, number, np.bincount(number, minlength=len(names))
