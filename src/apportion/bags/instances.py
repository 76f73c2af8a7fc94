"""X and y as users pass them: checked as scikit-learn does, and turned into a tensor or a data frame.

`read_rows` is for `fit`, `check_instances_like_fit` for what is predicted later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import torch
from narwhals.dependencies import (
    is_pandas_dataframe,
    is_pandas_series,
    is_polars_dataframe,
    is_polars_lazyframe,
)
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data  # type: ignore[attr-defined]
from torch import Tensor

from apportion._scratch import (
    check_room,
    empty_array,
    is_large,
    is_mapped,
    pieces,
)
from apportion.bags.arrays import (
    as_tensor,
    move_channels_first,
    refuse_masked_values,
    refuse_texts_and_sparse,
    stack_images,
)
from apportion.bags.bags import Bags, empty_like
from apportion.bags.proportions import without_torch
from apportion.encoding import TableEncoder, check_unique_columns, read_batches
from apportion.errors import DataError, did_you_mean

ARRAYS: dict[str, Any] = {"dtype": [np.float32, np.uint8], "allow_nd": True}  # images stay bytes
# rows of numbers that are encoded: in their own type, since a float32 has only seven digits
NUMBERS: dict[str, Any] = {"dtype": "numeric", "ensure_all_finite": "allow-nan"}

SMALLEST_WEIGHT = 1e-9  # of a row, relative to the mean
BLOCK = 1 << 25  # bytes of features that are put into order at once

# --- data frames and bags


def is_frame(X: Any) -> bool:
    """Whether X is a data frame of pandas or polars, also a lazy one."""
    return is_pandas_dataframe(X) or is_polars_dataframe(X) or is_polars_lazyframe(X)


def has_index(values: Any) -> bool:
    """Whether `values` is a pandas frame or series, whose index names its rows."""
    return is_pandas_dataframe(values) or is_pandas_series(values)


def bag_column_names(bags: Any) -> list[str]:
    """The columns that `bags` names."""
    values = [bags]
    if isinstance(bags, dict):
        values = list(bags.values())
    elif isinstance(bags, list | tuple):
        values = list(bags)
    if len(values) >= 1000:  # a list of ids, one per row
        return []
    return [value for value in values if isinstance(value, str)]


def take_bag_columns(X: Any, bags: Any) -> tuple[Any, Any]:
    """X without the columns that `bags` names, and `bags` with the ids in place of the names.

    A list of columns means several groupings, one per column.
    """
    if not is_frame(X):
        return X, bags
    columns = X.collect_schema().names() if is_polars_lazyframe(X) else list(X.columns)
    if isinstance(bags, str):
        ids = _column_of(X, bags, columns)
        return _drop_columns(X, [bags]), ids
    if isinstance(bags, list | tuple) and 0 < len(bags) <= len(columns) and set(bags) <= set(columns):
        bags = {name: name for name in bags}
    if not isinstance(bags, Mapping):
        return X, bags
    ids = {
        name: _column_of(X, each, columns) if isinstance(each, str) else each for name, each in bags.items()
    }
    return _drop_columns(X, [each for each in bags.values() if isinstance(each, str)]), ids


def _column_of(X: Any, name: str, columns: list[Any]) -> Any:
    if name not in columns:
        what = f"bags is {name!r}, which is not a column of X{did_you_mean(name, columns)}"
        raise DataError(f"{what}; it has {columns[:20]}", value=name)
    return LazyIds(X, name) if is_polars_lazyframe(X) else X[name]


class LazyIds:
    """A column of a polars LazyFrame, which is read a batch at a time."""

    def __init__(self, frame: Any, name: str) -> None:
        self.frame = frame.select(name)
        self.name = name

    def __len__(self) -> int:
        return count_rows(self.frame)

    def batches(self) -> Iterator[Any]:
        """The column as polars series."""
        for batch in read_batches(self.frame):
            yield batch.to_series()

    def collect(self) -> Any:
        """The whole column."""
        return self.frame.collect().to_series()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.collect(), dtype)


def _drop_columns(X: Any, names: list[str]) -> Any:
    names = list(dict.fromkeys(names))
    return X.drop(columns=names) if is_pandas_dataframe(X) else X.drop(names)


def check_row_order(
    X: Any, bags: Any, name: str = "X", *, bags_name: str = "bags", counted_index: bool = True
) -> None:
    """Raise DataError if pandas indices show that the rows of X and bags are in different orders.

    Rows are matched by position. Without `counted_index`, a RangeIndex of X, such as that of a frame made
    from an array, is ignored.
    """
    if isinstance(bags, Mapping):  # the groupings must not contradict each other either
        indexed = [(f"bags[{each!r}]", ids) for each, ids in bags.items() if has_index(ids)]
        for each, ids in indexed:
            check_row_order(X, ids, name, counted_index=counted_index)
            check_row_order(indexed[0][1], ids, indexed[0][0], bags_name=each)
        return
    if not (has_index(X) and has_index(bags)) or len(X) != len(bags) or X.index.equals(bags.index):
        return
    if not counted_index and type(X.index).__name__ == "RangeIndex":
        return
    if X.index.is_unique and bags.index.is_unique and bags.index.isin(X.index).all():
        first = bags.index.tolist()[0]
        hint = (
            f"pass {bags_name}.loc[{name}.index], or {bags_name}.to_numpy() if it is in the order of {name}"
        )
        raise DataError(f"{bags_name} has the rows of {name} in another order, {first!r} first; {hint}")


def read_weight(weight: Any, n_rows: int) -> np.ndarray | None:
    """The weights of the rows, (n,) float64 and positive; None if there are none, or if all are one.

    A weight of zero becomes a billionth of the mean: the row is still predicted and labeled, and nothing is
    learned from it.
    """
    if weight is None:
        return None
    values = np.asarray(refuse_masked_values(weight), dtype=np.float64).reshape(-1)
    if len(values) != n_rows:
        raise DataError(
            f"sample_weight has {len(values)} entries, but there are {n_rows} rows; pass one per row"
        )
    wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
    if len(wrong):
        value = float(values[wrong[0]])
        what = f"sample_weight is {value:g} in row {wrong[0]}"
        raise DataError(f"{what}; pass finite numbers of zero or more", value=value)
    if not values.any():
        raise DataError("all of sample_weight is zero; pass a positive weight for some rows")
    if (values == 1).all():
        return None
    return np.maximum(values, SMALLEST_WEIGHT * values.mean())


# --- instances for fit


class Rows(NamedTuple):
    """The rows that a fit is given, checked."""

    instances: Any  # a data frame, an array of rows of numbers, or a tensor
    n: int
    y: Any
    bags: Any  # ids, also where X has them in a column
    weight: np.ndarray | None  # (n,)
    bag_columns: list[str]  # the columns of X that hold bag ids or weights, and are no features


def read_rows(
    estimator: Any, X: Any, y: Any, *, bags: Any, sample_weight: Any, needs_y: bool, encode: bool
) -> Rows:
    """What `fit` is given for every row; the arguments are those of `fit` and `check_instances`."""
    columns = bag_column_names(bags)
    X, bags = take_bag_columns(X, bags)
    if isinstance(sample_weight, str):
        columns = [*columns, sample_weight]
        X, sample_weight = take_bag_columns(X, sample_weight)
    check_row_order(X, bags)
    instances, y = check_instances(estimator, X, y, needs_y=needs_y, encode=encode)
    n = count_rows(instances)
    return Rows(instances, n, y, bags, read_weight(sample_weight, n), columns)


def check_instances(estimator: Any, X: Any, y: Any, *, needs_y: bool, encode: bool) -> tuple[Any, Any]:
    """Instances as a data frame, an array of rows of numbers or a tensor, and y.

    A tensor is used as it is; frames and, with `encode`, rows of numbers are encoded. As in scikit-learn, the
    estimator keeps the number of features, and the names of a frame's columns.
    """
    if needs_y and y is None:
        hint = "pass the bags and their proportions, or labels"
        raise DataError(f"requires y to be passed, but the target y is None; {hint}")
    if is_frame(X):
        _record_columns(estimator, X)
        return X, _check_y(y)
    y = _check_y(y)
    X = move_channels_first(stack_images(without_torch(X)))
    refuse_texts_and_sparse(X)
    encode = encode and not _has_many_axes(X)
    settings = NUMBERS if encode else ARRAYS
    if y is None or len(shape_of(y)) > 1:
        X = validate_data(estimator, X, **settings)
    else:
        X, y = validate_data(estimator, X, y, **settings)
    return X if encode else as_tensor(X), y


def _has_many_axes(X: Any) -> bool:
    """Whether instances are not rows, but images, series, …"""
    if hasattr(X, "ndim"):
        return X.ndim > 2
    return isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) > 1


def _check_y(y: Any) -> Any:
    """Labels as a vector. Proportions row by row stay as they are, since their column names matter."""
    if y is None:
        return None
    y = without_torch(y)
    if isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1:
        for row, label in enumerate(y):
            if label is None:
                hint = "leave such rows out, or pass bags and their proportions instead of y"
                raise DataError(f"y has no label in row {row}; {hint}")
    if len(shape_of(y)) > 1 and shape_of(y)[1] > 1:
        return y
    y = check_array(refuse_masked_values(y), ensure_2d=False, dtype=None, input_name="y")
    y = column_or_1d(y, warn=True)
    if y.dtype.kind == "f" and ((y >= 0) & (y <= 1)).all() and (y % 1 != 0).any():
        hint = "pass the shares of both classes, numpy.column_stack([1 - y, y])"
        raise DataError(f"y has numbers from {y.min():g} to {y.max():g}, like shares of one class; {hint}")
    check_classification_targets(y)
    return y


def shape_of(y: Any) -> tuple[int, ...]:
    """The shape of anything that numpy can read; np.shape fails for some array-likes."""
    return tuple(y.shape) if hasattr(y, "shape") else np.asarray(y).shape


def _record_columns(estimator: Any, frame: Any) -> None:
    check_unique_columns(frame)
    if is_pandas_dataframe(frame):
        validate_data(estimator, frame, skip_check_array=True)
        return
    names = nw.from_native(frame).collect_schema().names()  # scikit-learn before 1.9 cannot read polars 2
    estimator.n_features_in_ = len(names)
    estimator.feature_names_in_ = np.asarray(names, dtype=object)


# --- features in the order of the bags


def count_rows(instances: Any) -> int:
    if is_polars_lazyframe(instances):
        return int(nw.from_native(instances).select(nw.len()).collect().item())
    return len(instances)


def encode_features(
    instances: Any, parts: list[Bags], n_rows: int
) -> tuple[Tensor, TableEncoder | None, bool]:
    """Features of all rows in the order of the parts, the encoder of a table, and whether they lie in a file.

    Features are written straight to the places of their rows. The encoder is fitted on the rows of the first
    part, those that are learned from. A tensor is not encoded.
    """
    source = torch.cat([part.source for part in parts]) if len(parts) > 1 else parts[0].source
    if isinstance(instances, Tensor):
        return take_rows(instances, source), None, False
    learned = np.zeros(n_rows, bool)
    learned[parts[0].source.numpy()] = True
    encoder = TableEncoder().fit(instances, rows=None if learned.all() else learned)
    width = len(encoder.get_feature_names_out())
    _check_disk_for_features(parts, len(source), width)
    if len(source) != n_rows:  # rows are in a bag of each of several groupings
        x = empty_array((n_rows, width), np.float32)
        encoder.transform(instances, out=x)
        return take_rows(torch.from_numpy(x), source), encoder, is_mapped(x)
    x = _encode_in_order(encoder, instances, source.numpy(), width)
    return torch.from_numpy(x), encoder, is_mapped(x)


def _encode_in_order(encoder: TableEncoder, instances: Any, source: np.ndarray, width: int) -> np.ndarray:
    """Features (n, width) with row `source[i]` of the instances in place i.

    In a file, rows that go anywhere would be slow, since each would read and write a page. Rows then go to
    their block first, one after the other, and every block is put into order by itself.
    """
    n_rows = len(source)
    x = empty_array((n_rows, width), np.float32)
    in_blocks = is_mapped(x)
    blocks = list(pieces(n_rows, max(1, BLOCK // (4 * width))))
    places = empty_array(n_rows, np.int32 if n_rows < 2**31 else np.int64)
    for rows in blocks:
        own = np.sort(source[rows]) if in_blocks else source[rows]
        places[own] = np.arange(rows.start, rows.stop)
    encoder.transform(instances, out=x, places=places)
    for rows in blocks if in_blocks else ():
        block = x[rows].copy()
        x[rows][np.argsort(source[rows])] = block
    return x


def _check_disk_for_features(parts: list[Bags], n_rows: int, width: int) -> None:
    """Raise DataError if features are so many that they go to a file, and there is no room for it.

    Trees take one byte for each feature, all other arrays about 40 bytes per row. The bags with known
    proportions are copied if others have none.
    """
    n_bytes = 4 * n_rows * width
    if is_large(n_bytes):
        known = all(bool(part.proportions.isfinite().all()) for part in parts)
        check_room(int(n_bytes * (1.25 if known else 2.25)) + 40 * n_rows)


def take_rows(x: Tensor, source: Tensor) -> Tensor:
    """`x[source]`, without a copy if that changes nothing."""
    unchanged = len(source) == len(x)
    for rows in pieces(len(source)):
        unchanged = unchanged and bool((source[rows] == torch.arange(rows.start, rows.stop)).all())
    if unchanged:
        return x
    taken = empty_like(x, len(source))
    for rows in pieces(len(source)):
        torch.index_select(x, 0, source[rows].to(x.device), out=taken[rows])
    return taken


def check_features_differ(x: Tensor, encoder: TableEncoder | None) -> None:
    """Raise DataError if all instances are equal, or if a frame has only dates."""
    if encoder is not None and all(column.kind == "date" for column in encoder.columns_):
        names = [column.name for column in encoder.columns_]
        raise DataError(f"X has only dates ({names}), which do not describe the rows; add other columns")
    if all(bool((part == x[:1]).all()) for part in x.split(100_000)):
        raise DataError(
            f"all {len(x)} rows of X are equal, so there is nothing to learn from; pass other features"
        )


def split_features(parts: list[Bags], x: Tensor) -> tuple[Bags, Bags | None]:
    """Training and validation bags with their part of `x`, on its device."""
    features = x.split([len(part.source) for part in parts])
    bags = [replace(part.to(x.device), x=own) for part, own in zip(parts, features, strict=True)]
    return bags[0], bags[1] if len(bags) > 1 else None


# --- instances like those of fit


def check_instances_like_fit(estimator: Any, X: Any) -> Any:
    """Instances as a data frame, an array or a tensor, as the estimator was fitted on."""
    X = without_torch(_drop_bag_columns(X, estimator.bag_columns_))
    if estimator.encoder_ is not None and not estimator.encoder_.named:
        refuse_texts_and_sparse(X)
        return validate_data(estimator, X, reset=False, **NUMBERS)
    if estimator.encoder_ is not None:
        frame = X if is_frame(X) else _frame_like_fit(estimator, X)
        _compare_columns(estimator, frame)
        return frame
    X = _move_channels_like_fit(stack_images(X), estimator.instance_shape_, estimator.bytes_)
    refuse_texts_and_sparse(X)
    x = as_tensor(validate_data(estimator, X, reset=False, **ARRAYS))
    _check_like_fit(x, estimator.instance_shape_, estimator.bytes_)
    return x


def _drop_bag_columns(X: Any, columns: list[str]) -> Any:
    """The frame without the columns that named the bags in `fit`."""
    if not columns or not is_frame(X):
        return X
    there = X.collect_schema().names() if is_polars_lazyframe(X) else list(X.columns)
    extra = [name for name in dict.fromkeys(columns) if name in there]
    return X.drop(columns=extra) if is_pandas_dataframe(X) else X.drop(extra)


def _compare_columns(estimator: Any, frame: Any) -> None:
    check_unique_columns(frame)
    if is_pandas_dataframe(frame):
        validate_data(estimator, frame, reset=False, skip_check_array=True)
        return
    names = nw.from_native(frame).collect_schema().names()
    known = list(getattr(estimator, "feature_names_in_", names))
    if names != known:
        what = "The feature names should match those that were passed during fit"
        raise DataError(f"{what}: X has {names[:20]}; pass {known[:20]}, in this order")


def _frame_like_fit(estimator: Any, X: Any) -> Any:
    """An array as a frame with the columns of `fit`, after scikit-learn's warning that it has no names."""
    X = validate_data(estimator, X, reset=False, dtype=None, ensure_all_finite=False)
    names = [column.name for column in estimator.encoder_.columns_]
    for backend in ("pandas", "polars"):
        try:
            return nw.from_dict({name: X[:, j] for j, name in enumerate(names)}, backend=backend).to_native()
        except ImportError:
            continue
    raise DataError(f"fit had a data frame; install pandas or polars, and pass one with the columns {names}")


def _move_channels_like_fit(X: Any, shape: tuple[int, ...], as_bytes: bool) -> Any:
    """Images with channels last as those of `fit`; an error says what to pass for other layouts."""
    found_shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
    if len(shape) == 3 and found_shape and found_shape[1:] != shape:
        if found_shape[1:] == (*shape[1:], shape[0]):
            return np.ascontiguousarray(np.moveaxis(np.asarray(X), 3, 1))
        hint = "; pass instances of that shape"
        if found_shape in (shape, shape[1:]):
            index = ", ".join(["None"] * (4 - len(found_shape)))
            raise DataError(f"X is one image of shape {found_shape}; pass X[{index}]", value=found_shape)
        if shape[0] == 1 and found_shape[1:] == shape[1:]:
            hint = "; pass X[:, None]"
        raise DataError(
            f"X has instances of shape {found_shape[1:]}, but fit had {shape}{hint}", value=found_shape[1:]
        )
    if as_bytes and isinstance(X, np.ndarray) and X.dtype.kind in "iu" and X.dtype != np.uint8:
        bits = "(X >> 8)" if X.size and X.max() > 255 else "X"  # 16 bits per value
        raise DataError(
            f"X has numbers of type {X.dtype}, but fit had bytes; pass {bits}.astype(numpy.uint8)"
        )
    return X


def _check_like_fit(x: Tensor, shape: tuple[int, ...], as_bytes: bool) -> None:
    """Raise DataError for instances whose shape or type differs from `fit`: only bytes are centered."""
    if tuple(x.shape[1:]) != shape:
        found_shape = tuple(x.shape[1:])
        what = f"X has instances of shape {found_shape}, but fit had {shape}"
        raise DataError(f"{what}; pass instances of that shape", value=found_shape)
    if as_bytes and x.dtype != torch.uint8:
        raise DataError("X has floats, but fit had bytes; pass pixels from 0 to 255 as numpy.uint8")
    if x.dtype == torch.uint8 and not as_bytes:
        raise DataError("X has bytes, but fit had floats; pass floats, scaled in the same way")
