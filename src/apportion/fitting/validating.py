"""What scikit-learn asks of the arguments of an estimator."""

import logging
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data  # type: ignore[attr-defined]

from apportion.errors import DataError
from apportion.intake.instances import library_of

LARGE, SMALL = 30.0, 0.003  # sizes of features: beyond them an mlp learns little or nothing (docs/log.md)
_ACCEPTED: dict[str, Any] = {"dtype": [np.float32, np.uint8], "allow_nd": True}  # bytes of images stay so


def validated(estimator: Any, X: Any, y: Any, table: bool) -> tuple[Any, Any]:
    """Instances and labels (n,) or shares (n, k), or None where a table of the bags has them."""
    if y is None and not table:
        remedy = "or pass the proportions or counts of bags"
        raise ValueError(f"this estimator requires y to be passed, but the target y is None; {remedy}")
    if y is None:
        return _checked(estimator, X), None
    _refuse_gaps(y)
    X, y = _checked(estimator, X, y, multi_output=True)
    if y.ndim == 1 or y.shape[1] == 1:
        y = column_or_1d(y, warn=True)
        _refuse_one_share(y)
        check_classification_targets(y)
    return X, y


def _checked(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    if issparse(X):
        few = X.shape[1] <= 1000
        remedy = f"pass {'X.toarray()' if few else 'it through TruncatedSVD(50), as a pipeline does'}"
        raise DataError(f"X is a sparse matrix of {X.shape[1]:,} columns, networks take dense rows; {remedy}")
    column = getattr(X, "ndim", 0) == 1 or (library_of(X) == "polars" and type(X).__name__ == "Series")
    first = next(iter(X), None) if column or isinstance(X, list | tuple) else None
    if isinstance(first, str) and first.lower().endswith((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")):
        remedy = "open them, [PIL.Image.open(name).convert('RGB') for name in X]"
        raise DataError(f"X has names of files, such as {first[-40:]!r}; {remedy}")
    if isinstance(first, str):
        steps = "TfidfVectorizer(), TruncatedSVD(50), ProportionClassifier()"
        raise DataError(f"X has texts, such as {first[:40]!r}; make numbers of them, make_pipeline({steps})")
    if column and first is not None and np.ndim(first) == 1:
        raise DataError(f"X is a column of vectors of {np.size(first)} numbers; pass numpy.stack(X)")
    try:
        return validate_data(estimator, X, *y, **options, **_ACCEPTED)
    except (TypeError, ValueError):  # which do not say in which column
        frame = library_of(X) == "pandas" and type(X).__name__ == "DataFrame"
        for name, values in X.items() if frame else ():
            if not _is_numeric(values.dropna().to_numpy()):
                remedy = "encode it, by scikit-learn's ColumnTransformer or in apportion fit, or leave it out"
                raise DataError(
                    f"column {name!r} of X has {values.dtype}, and no numbers; {remedy}"
                ) from None
        raise


def _is_numeric(values: np.ndarray) -> bool:
    try:
        values.astype(np.float64)
    except (TypeError, ValueError):
        return False
    return values.dtype.kind not in "mM"


def _refuse_gaps(y: Any) -> None:
    """Rows without a label, where None stands for it: sorting would fail, and not say where."""
    if type(y) is not np.ndarray or y.dtype != object or y.ndim > 1:
        return
    for row in (i for i, label in enumerate(y) if label is None):
        remedy = "leave such rows out, or pass bags and their proportions instead of y"
        raise DataError(f"y has no label in row {row}; {remedy}")


def _refuse_one_share(y: np.ndarray) -> None:
    """The share of one class on every row: shares are those of all classes."""
    if y.dtype.kind == "f" and ((y >= 0) & (y <= 1)).all() and (y % 1 != 0).any():
        remedy = "pass those of both, numpy.column_stack([1 - y, y])"
        raise DataError(f"y has numbers from {y.min():g} to {y.max():g}, the shares of one class; {remedy}")


def warn_of_sizes(X: np.ndarray, names: Any = None) -> None:
    """Features so large that they drown the others, or all so small that nothing is learned in time."""
    if X.dtype == np.uint8:  # bytes are centered
        return
    sizes = np.sqrt(np.einsum("ij,ij->j", X, X, dtype=np.float64) / len(X))
    if SMALL <= sizes.max() <= LARGE or not sizes.max():
        return
    j = int(sizes.argmax())
    which = f"feature {j} of X" if names is None else f"feature {names[j]!r} of X"
    what = f"{which}, the largest, has a root mean square of {sizes[j]:.3g}: a network learns badly from it"
    remedy = "scale the features before, such as by make_pipeline(StandardScaler(), ProportionClassifier())"
    logging.getLogger("apportion").warning("%s; %s", what, remedy)


def validated_again(estimator: Any, X: Any) -> Any:
    """Instances such as `fit` had."""
    return validate_data(estimator, X, reset=False, **_ACCEPTED)


def check_labels(y: Any) -> None:
    """Accuracy is of labels: where only shares of bags are known, bags that were held out are scored."""
    shape = np.shape(y)
    if len(shape) == 2 and shape[1] > 1:
        remedy = "pass scoring=BagScore() to a search, or score held-out bags with it"
        raise DataError(f"y has shares of {shape[1]} classes, and accuracy wants labels; {remedy}")
