"""ProportionClassifier: both stages behind the interface of scikit-learn."""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import narwhals as nw
import numpy as np
import torch
from narwhals.dependencies import is_pandas_dataframe, is_pandas_series, is_polars_lazyframe, is_polars_series
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[attr-defined]
from torch import Tensor, nn

from apportion._device import catch_out_of_memory, resolve_device
from apportion._random import as_seed, preserve_random_state
from apportion.bags.arrays import (
    as_floats,
    as_tensor,
    is_images,
    move_channels_first,
    refuse_masked_values,
    stack_images,
)
from apportion.bags.bags import Bags, bag_slices, exact_bag_means
from apportion.bags.build import (
    build_bags_without_features,
    check_row_order,
    column_names,
    group_rows,
    is_frame,
    take_bag_columns,
    take_rows,
)
from apportion.bags.known_labels import read_known_labels
from apportion.bags.problems import check_bags_differ, raise_problem
from apportion.defaults import check_settings, resolve_auto
from apportion.encoding import TableEncoder
from apportion.errors import ApportionWarning, DataError
from apportion.evaluate import bag_correlation, predict_log_proba_on
from apportion.networks import NETWORKS
from apportion.pipeline import EpochState, fit_two_stages
from apportion.pseudo_labels import make_labeler, transduce
from apportion.selection.diagnosis import MIN_BAGS
from apportion.selection.epochs import EpochSelector, check_selection, split_bags
from apportion.selection.scores import SCORES

LARGEST_FEATURE = 30.0  # an mlp learns badly if a feature's root mean square is larger (docs/log.md)
SMALLEST_FEATURE = 0.003  # or if those of all features are smaller
LONG_STAGE = 600.0  # seconds; a warning announces a stage that takes longer
ARRAYS: dict[str, Any] = {"dtype": [np.float32, np.uint8], "allow_nd": True}  # images stay bytes
STAGE_SETTINGS = (
    "method",
    "epochs",
    "student_epochs",
    "learning_rate",
    "student_learning_rate",
    "batch_size",
    "horizontal_flip",
)


class ProportionClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of rows or images that learns from the class proportions of bags.

    A network (the teacher) learns from the proportions of the bags. Its predictions are then turned into
    labels that match the proportions of every bag, and a second network (the student) learns from these.

    Rows in a data frame (pandas or polars) are encoded: numbers are standardized, texts become categories,
    dates and missing values are handled, see `TableEncoder`. Rows in an array are used as they are: scale
    them. Images are arrays of bytes (n, channels, height, width); channels may also be last.

    Parameters
    ----------
    model : str or callable, default="auto"
        The network: "mlp", "conv13", "resnet9", "resnet18" or "wrn_28_2", or a function
        `(shape, n_classes) -> torch.nn.Module` that makes a new network from the shape of an instance.
        "auto": an mlp for rows, a ResNet-9 for images.
    method : {"auto", "dllp", "count_likelihood", "llp_vat", "llp_gan", "rot", "two_views"}, default="auto"
        How the teacher learns from proportions. "auto": "dllp" for rows, "two_views" for images.
    pseudo_labels : {"auto", "soft", "hard", "predicted", "argmax"} or None, default="auto"
        The labels that the student learns: "soft" or "hard" labels that match the proportions, by entropic or
        exact optimal transport, or, for comparison, the "predicted" probabilities or their "argmax".
        None: no student. "auto": "soft" for rows, None for images.
    epochs : int, optional
        Passes over the data for the teacher. None: chosen from the data and the bag sizes.
    student_epochs : int, optional
        Passes over the data for the student.
    learning_rate : float, optional
        Peak learning rate of the teacher. None: the default of the optimizer.
    student_learning_rate : float, optional
        Peak learning rate of the student.
    batch_size : int, optional
        Rows per batch. Batches hold whole bags, and a larger bag is sampled in every epoch. None: chosen
        from the bag sizes.
    reg : float, default=1.0
        Entropic regularization of soft labels (1/λ in the paper). Smaller values give harder labels.
    horizontal_flip : bool, default=True
        Whether training may mirror images. Pass False if mirror images may belong to another class, as with
        digits.
    validation_fraction : float, default=0.0
        Fraction of the bags that is held out from training, for `select_by` and `calibrate`.
    select_by : str, optional
        A score of the validation bags, such as "likelihood" (see `BagScore`): the weights of the epoch with
        the best score are kept. None: those of the last epoch.
    calibrate : bool, default=False
        Whether to divide the logits by the temperature at which the counts of the validation bags are most
        likely. Predicted classes stay the same, probabilities change.
    device : str, default="auto"
        "cpu", "cuda" (or "cuda:1") or "mps". "auto": CUDA for images if available, else the CPU.
    random_state : int, RandomState instance or None, default=None
        An int makes fits repeatable. None: a new seed for every fit.
    verbose : int, default=0
        1: print a line per epoch, with the time left.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The sorted classes. Columns of `predict_proba` are in this order.
    model_ : torch.nn.Module
        The trained network, on the CPU and in evaluation mode. It returns logits.
    transduction_ : ndarray of shape (n_samples,)
        Classes of the training rows: the most probable ones that have the counts of every bag. With several
        groupings, the counts of the first are matched exactly and those of the others approximately.
    history_ : list of dict
        One entry per epoch: stage, epoch, the mean of every loss term, seconds, and the validation score if
        `select_by` is given.
    best_epoch_ : tuple of (str, int)
        The stage and the epoch whose weights were kept.
    temperature_ : float
        What logits were divided by; 1 without `calibrate`.
    bag_scores_ : dict
        For "train" and, if there are any, "validation" bags: "proportion_error", half the L1 distance between
        predicted and known proportions, and "bag_correlation" (None for fewer than six bags).
    validation_bags_ : list
        Ids of the bags that were not learned from.
    encoder_ : TableEncoder or None
        The encoder of the columns, if `X` was a data frame.
    n_features_in_ : int
        Number of features (columns) seen during `fit`.
    feature_names_in_ : ndarray of str
        Names of the columns, if `X` was a data frame whose column names are all strings.
    device_ : str
        Where the networks were trained.
    optimizers_ : dict
        For each stage, the optimizer and its peak learning rate in words.
    resolved_ : dict
        The model, method and pseudo-labels that were used, in place of "auto".
    instance_shape_ : tuple of int
        Shape of one instance: the number of features, or (channels, height, width).
    bytes_ : bool
        Whether instances were images as bytes.
    n_rows_ : int
        Number of rows seen during `fit`.
    bag_columns_ : list of str
        Columns of a data frame that held bag ids. `predict` ignores them.

    See Also
    --------
    apportion.Proportions : A table of proportions and how to interpret it: counts, percentages, noise, gaps.
    apportion.condition_on_proportions : Predictions for rows whose bags have known proportions.
    apportion.expand_proportions : Proportions row by row, for searches and cross-validation.

    Examples
    --------
    >>> import numpy as np
    >>> from apportion import ProportionClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 2))
    >>> precinct = np.arange(400) % 40
    >>> voted = X[:, 0] > 0  # not known to the classifier
    >>> share = {i: voted[precinct == i].mean() for i in range(40)}
    >>> table = {i: {"no": 1 - yes, "yes": yes} for i, yes in share.items()}
    >>> model = ProportionClassifier(epochs=40, student_epochs=20, random_state=0)
    >>> model = model.fit(X, bags=precinct, proportions=table)
    >>> model.predict([[2.0, 0.0], [-2.0, 0.0]])
    array(['yes', 'no'], dtype='<U3')
    """

    # Routed metadata is split into folds by rows, and a table has one row per bag, so it cannot be routed.
    __metadata_request__fit = {"bags": True, "proportions": UNUSED, "known_labels": UNUSED}

    def __init__(
        self,
        model: Any = "auto",
        method: str = "auto",
        pseudo_labels: str | None = "auto",
        *,
        epochs: int | None = None,
        student_epochs: int | None = None,
        learning_rate: float | None = None,
        student_learning_rate: float | None = None,
        batch_size: int | None = None,
        reg: float = 1.0,
        horizontal_flip: bool = True,
        validation_fraction: float = 0.0,
        select_by: str | None = None,
        calibrate: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.method = method
        self.pseudo_labels = pseudo_labels
        self.epochs = epochs
        self.student_epochs = student_epochs
        self.learning_rate = learning_rate
        self.student_learning_rate = student_learning_rate
        self.batch_size = batch_size
        self.reg = reg
        self.horizontal_flip = horizontal_flip
        self.validation_fraction = validation_fraction
        self.select_by = select_by
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None, known_labels: Any = None
    ) -> Self:
        """Learn from bags of instances and the class proportions of the bags.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, ...)
            The instances: rows, or images as bytes. Also a polars LazyFrame, and a list of images.
        y : array-like, optional
            In place of `proportions`: labels (n_samples,), which are counted in every bag and not used again,
            or the proportions of each row's own bag (n_samples, n_classes), see `expand_proportions`. Labels
            without `bags` are supervised learning.
        bags : array-like of shape (n_samples,), str or dict
            The bag id of each row, or the name of the column of `X` that has it, which is then not a feature.
            `{grouping: either}`, or a list of columns, if each row lies in a bag of several groupings.
        proportions : dict, data frame, array, Proportions or dict of these
            One row per bag, in any form that `Proportions` takes: `{bag: {class: share}}`, a frame with one
            column per class, counts, percentages, … `{grouping: any of these}` for several groupings.
        known_labels : dict or pandas series, optional
            `{row: class}` of a few rows (rows counted from 0), in addition to the proportions. A series is
            matched by the index of `X`.

        Returns
        -------
        self : ProportionClassifier
            The fitted classifier. If fitting is interrupted, the classifier is unfitted.
        """
        for state in self.iter_fit(X, y, bags=bags, proportions=proportions, known_labels=known_labels):
            if self.verbose:
                sys.stdout.write(f"{describe_epoch(state, self.history_[-1])}\n")
            else:
                _warn_of_long_stage(state)
        return self

    def iter_fit(
        self, X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None, known_labels: Any = None
    ) -> Iterator[EpochState]:
        """`fit` as a generator, with the same parameters.

        Yields
        ------
        EpochState
            After every epoch. The classifier is fitted when the generator is exhausted.
        """
        _delete_fitted_attributes(self)
        seed = as_seed(self.random_state)
        check_selection(self.validation_fraction, self.select_by, self.calibrate)
        columns = _bag_column_names(bags)
        X, bags = take_bag_columns(X, bags)
        check_row_order(X, bags)
        instances, y = _validate(self, X, y, reset=True, needs_y=proportions is None)
        n_rows = _count_rows(instances)
        labels = read_known_labels(known_labels, X, bags, n_rows)
        built = build_bags_without_features(
            n_rows, y, bags=bags, proportions=proportions, known_labels=labels
        )
        for problem in check_bags_differ(built.bags.proportions.double().numpy()):
            raise_problem(problem)
        all_bags = built.bags
        if self.validation_fraction:  # numbers to put predictions back in order after the split
            all_bags = replace(all_bags, x=torch.arange(len(all_bags.x)).unsqueeze(1))
        training, validation = split_bags(all_bags, self.validation_fraction, seed, self.select_by)
        parts = [training] if validation is None else [training, validation]
        x, encoder = _encode_features(instances, parts, n_rows)
        _check_informative(x, encoder)
        self.encoder_: Any = encoder
        device = resolve_device(self.device, x)
        settings = self._resolve_settings(x, device)
        if settings["model"] == "mlp" and self.encoder_ is None:
            _warn_of_scale(x, getattr(self, "feature_names_in_", None))

        self.classes_ = built.classes
        self.history_ = []
        self.resolved_ = {name: settings[name] for name in ("model", "method", "pseudo_labels")}
        self.instance_shape_ = tuple(x.shape[1:])
        self.bytes_ = x.dtype == torch.uint8
        self.n_rows_ = n_rows
        self.bag_columns_ = columns
        self.device_ = str(device)
        with preserve_random_state(device), catch_out_of_memory(x, device):
            x = x.to(device)
            training, validation = _add_features(parts, x)
            selector = EpochSelector(validation, self.select_by)
            for state in _fit_stages(training, settings, seed):
                score = selector.update(state)
                self.history_.append(_history_entry(state) | score)
                yield state
            model, self.temperature_ = selector.best_network(self.calibrate)
            self.best_epoch_ = selector.stage, selector.epoch
            self.optimizers_ = selector.optimizers
            log_probs = predict_log_proba_on(device, model, x, as_floats).to(device)
            self.transduction_ = self.classes_[_transduce(log_probs, parts, built.bags)]
            self.bag_scores_ = _score_bags(log_probs.cpu(), parts)
        self.validation_bags_ = [] if len(parts) == 1 else list(parts[1].ids)
        self.model_ = model

    def _resolve_settings(self, x: Tensor, device: torch.device) -> dict[str, Any]:
        """The settings of both stages, checked, with "auto" replaced by what goes with these instances."""
        settings = resolve_auto(self.get_params(deep=False), x, device)
        check_settings(settings)
        _check_shape(x, self.model, settings["model"])
        return settings

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in vars(self)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, ...)
            Instances like those passed to `fit`. The column of bags is ignored if it is there.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns are in the order of `classes_`.
        """
        check_is_fitted(self)
        instances, _ = _validate(self, X, None, reset=False, needs_y=False)
        if isinstance(instances, Tensor):
            x = instances
            _check_like_fit(x, self.instance_shape_, self.bytes_)
        else:
            x = torch.from_numpy(self.encoder_.transform(instances))
        log_probs = predict_log_proba_on(resolve_device(self.device, x), self.model_, x, as_floats)
        probabilities = log_probs.double().exp().numpy()
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each instance.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, ...)
            Instances like those passed to `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            One of `classes_` for each instance.
        """
        probabilities = self.predict_proba(X)  # first: it checks that the classifier is fitted
        return self.classes_[probabilities.argmax(1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or the likelihood of proportions.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, ...)
            Instances like those passed to `fit`.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            Labels, or the proportions of each row's own bag (see `expand_proportions`).
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; for labels only.

        Returns
        -------
        float
            For labels the fraction of correct predictions. For proportions the log-likelihood of the counts
            of the bags, in nats per row, as `BagScore()` gives it; rows with equal proportions are one bag.
        """
        if len(_shape_of(y)) == 2 and _shape_of(y)[1] > 1:
            return _score_proportions(self.predict_proba(X), y, self.classes_)
        return super().score(X, y, sample_weight)


# --- training


def _fit_stages(bags: Bags, settings: dict[str, Any], seed: int) -> Iterator[EpochState]:
    """Both stages with the estimator's settings."""
    model = settings["model"]
    labeler = None
    if settings["pseudo_labels"] is not None:
        labeler = make_labeler(settings["pseudo_labels"], settings["reg"])
    return fit_two_stages(
        bags,
        NETWORKS[model] if isinstance(model, str) else model,
        label=labeler,
        seed=seed,
        **{name: settings[name] for name in STAGE_SETTINGS},
    )


def _delete_fitted_attributes(estimator: BaseEstimator) -> None:
    """Delete the attributes of an earlier fit, so that an interrupted one cannot leave a mix of both."""
    for name in list(vars(estimator)):
        if name.endswith("_") and not name.startswith("_"):
            delattr(estimator, name)


def _history_entry(state: EpochState) -> dict[str, Any]:
    epoch = state.epoch
    return {"stage": state.stage, "epoch": epoch.number, **epoch.terms, "seconds": round(epoch.seconds, 3)}


def describe_epoch(state: EpochState, entry: dict[str, Any]) -> str:
    """A line about an epoch: stage, the values of its `history_` entry, and the time left in the stage."""
    values = [
        f"{name} {value:.4g}"
        for name, value in entry.items()
        if name not in ("stage", "epoch", "seconds")
    ]  # fmt: skip
    left = seconds_left(state)
    wait = ""
    if left > 90:
        wait = f"; {round(left / 60)} minutes left"
    elif left > 9:
        wait = f"; {left:.0f} s left"
    return (
        f"{state.stage} stage, epoch {state.epoch.number} of {state.epoch.total}: {', '.join(values)}{wait}"
    )


def seconds_left(state: EpochState) -> float:
    """Seconds left of the stage, if later epochs take as long as this one."""
    if state.last:
        return 0.0
    return (state.epoch.seconds + state.label_seconds) * (state.epoch.total - state.epoch.number)


def _warn_of_long_stage(state: EpochState) -> None:
    """Warn once that a stage takes long, judged by its second epoch: the first may include compilation."""
    left = seconds_left(state)
    if state.epoch.number == 2 and left > LONG_STAGE:
        what = f"the {state.stage} stage has {state.epoch.total} epochs of {state.epoch.seconds:.0f} s"
        hint = "verbose=1 shows progress; fewer epochs, smaller instances or a GPU make it shorter"
        warnings.warn(f"{what}, {left / 60:.0f} minutes more; {hint}", ApportionWarning, stacklevel=3)


def _transduce(log_probs: Tensor, parts: list[Bags], bags: Bags) -> np.ndarray:
    """Class codes of the user's rows that have the counts of every bag; `log_probs` follow the parts."""
    if len(parts) > 1:  # back to the order in which all bags were built
        where = torch.cat([part.x[:, 0] for part in parts])
        ordered = torch.empty_like(log_probs)
        ordered[where] = log_probs
        log_probs = ordered
    bags = replace(bags, proportions=bags.proportions.to(log_probs.device))
    return transduce(log_probs, bags)


def _score_bags(log_probs: Tensor, parts: list[Bags]) -> dict[str, dict[str, float | None]]:
    """How well predicted proportions agree with known ones; `log_probs` follow the parts."""
    scores = {}
    start = 0
    for name, part in zip(("train", "validation"), parts, strict=False):
        own = log_probs[start : start + len(part.source)]
        start += len(part.source)
        slices = bag_slices(part.sizes)
        predicted = torch.cat([exact_bag_means(own[rows].exp(), part.sizes[some]) for some, rows in slices])
        proportions = part.proportions.cpu()
        known = proportions.isfinite().all(1)
        errors = (predicted[known] - proportions[known]).abs().sum(1) / 2
        correlation = None
        if int(known.sum()) >= MIN_BAGS:  # of two bags and two classes it would be 1 or -1
            correlation = bag_correlation(predicted[known], proportions[known])
        scores[name] = {"proportion_error": float(errors.mean()), "bag_correlation": correlation}
    return scores


# --- features


def _encode_features(instances: Any, parts: list[Bags], n_rows: int) -> tuple[Tensor, TableEncoder | None]:
    """Features of the rows of all parts, in their order, and the encoder of a data frame.

    Features of a frame are written straight to the places of their rows. The encoder is fitted on the rows
    of the first part, those that are learned from.
    """
    source = torch.cat([part.source for part in parts]) if len(parts) > 1 else parts[0].source
    if isinstance(instances, Tensor):
        return take_rows(instances, source), None
    learned = np.zeros(n_rows, bool)
    learned[parts[0].source.numpy()] = True
    encoder = TableEncoder().fit(instances, rows=None if learned.all() else learned)
    if len(source) != n_rows:  # rows are in a bag of each of several groupings
        return torch.from_numpy(encoder.transform(instances))[source], encoder
    x = np.empty((n_rows, len(encoder.get_feature_names_out())), np.float32)
    places = np.empty(n_rows, np.int32 if n_rows < 2**31 else np.int64)
    places[source.numpy()] = np.arange(n_rows, dtype=places.dtype)
    encoder.transform(instances, out=x, places=places)
    return torch.from_numpy(x), encoder


def _add_features(parts: list[Bags], x: Tensor) -> tuple[Bags, Bags | None]:
    """Training and validation bags with their part of `x`, on its device."""
    features = x.split([len(part.source) for part in parts])
    bags = [replace(part.to(x.device), x=own) for part, own in zip(parts, features, strict=True)]
    return bags[0], bags[1] if len(bags) > 1 else None


def _check_informative(x: Tensor, encoder: TableEncoder | None) -> None:
    """Raise DataError if all instances are equal, or if a frame has only dates."""
    if encoder is not None and all(column.kind == "date" for column in encoder.columns_):
        names = [column.name for column in encoder.columns_]
        raise DataError(f"X has only dates ({names}), which do not describe the rows; add other columns")
    if all(bool((part == x[:1]).all()) for part in x.split(100_000)):
        raise DataError(
            f"all {len(x)} rows of X are equal, so there is nothing to learn from; pass other features"
        )


def _warn_of_scale(x: Tensor, names: Any = None) -> None:
    """Warn of a feature so large that it dominates the others, and of features too small to learn from."""
    if x.dtype == torch.uint8:
        return
    sizes = np.sqrt(np.einsum("ij,ij->j", x.numpy(), x.numpy(), dtype=np.float64) / len(x))
    if SMALLEST_FEATURE <= sizes.max() <= LARGEST_FEATURE:
        return
    j = int(sizes.argmax())
    which = f"feature {j} of X" if names is None else f"feature {names[j]!r} of X"
    what = f"{which} has the largest root mean square, {sizes[j]:.3g}, a scale at which networks learn badly"
    hint = "scale the features, such as with make_pipeline(StandardScaler(), ProportionClassifier())"
    warnings.warn(f"{what}; {hint}", ApportionWarning, stacklevel=4)


# --- validation of X and y


def _bag_column_names(bags: Any) -> list[str]:
    """The columns that `bags` names."""
    values = [bags]
    if isinstance(bags, dict):
        values = list(bags.values())
    elif isinstance(bags, list | tuple):
        values = list(bags)
    if len(values) >= 1000:  # a list of ids, one per row
        return []
    return [value for value in values if isinstance(value, str)]


def _validate(estimator: Any, X: Any, y: Any, *, reset: bool, needs_y: bool) -> tuple[Any, Any]:
    """Instances as a tensor or a data frame, and y, checked as scikit-learn does."""
    if needs_y and y is None:
        hint = "pass the bags and their proportions, or labels"
        raise DataError(f"requires y to be passed, but the target y is None; {hint}")
    if reset:
        as_frame = is_frame(X)
    else:
        X = _drop_bag_columns(X, estimator.bag_columns_)
        as_frame = estimator.encoder_ is not None
    if as_frame:
        frame = X if is_frame(X) else _frame_like_fit(estimator, X)
        _check_columns(estimator, frame, reset)
        return frame, _validate_y(y)
    X = stack_images(X)
    if reset:
        X = move_channels_first(X)
    else:
        X = _move_channels_like_fit(X, estimator.instance_shape_, estimator.bytes_)
    _refuse_texts_and_sparse(X)
    y = _validate_y(y)
    if y is None or len(_shape_of(y)) > 1:
        X = validate_data(estimator, X, reset=reset, **ARRAYS)
    else:
        X, y = validate_data(estimator, X, y, reset=reset, **ARRAYS)
    return as_tensor(X), y


def _validate_y(y: Any) -> Any:
    """Labels as a vector. Proportions row by row stay as they are, since their column names matter."""
    if y is None:
        return None
    if isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1:
        for row, label in enumerate(y):
            if label is None:
                hint = "leave such rows out, or pass bags and their proportions instead of y"
                raise DataError(f"y has no label in row {row}; {hint}")
    if len(_shape_of(y)) > 1 and _shape_of(y)[1] > 1:
        return y
    y = check_array(refuse_masked_values(y), ensure_2d=False, dtype=None, input_name="y")
    y = column_or_1d(y, warn=True)
    if y.dtype.kind == "f" and ((y >= 0) & (y <= 1)).all() and (y % 1 != 0).any():
        hint = "pass the shares of both classes, numpy.column_stack([1 - y, y])"
        raise DataError(f"y has numbers from {y.min():g} to {y.max():g}, like shares of one class; {hint}")
    check_classification_targets(y)
    return y


def _shape_of(y: Any) -> tuple[int, ...]:
    """The shape of anything that numpy can read; np.shape fails for some array-likes."""
    return tuple(y.shape) if hasattr(y, "shape") else np.asarray(y).shape


def _check_columns(estimator: Any, frame: Any, reset: bool) -> None:
    """Record the number and the names of a frame's columns, or compare them with those of `fit`."""
    if is_pandas_dataframe(frame):
        validate_data(estimator, frame, reset=reset, skip_check_array=True)
        return
    names = nw.from_native(frame).collect_schema().names()  # scikit-learn before 1.9 cannot read polars 2
    if reset:
        estimator.n_features_in_ = len(names)
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
        return
    known = list(getattr(estimator, "feature_names_in_", names))
    if names != known:
        what = "The feature names should match those that were passed during fit"
        raise DataError(f"{what}: X has {names[:20]}; pass {known[:20]}, in this order")


def _drop_bag_columns(X: Any, columns: list[str]) -> Any:
    """The frame without the columns that named the bags in `fit`."""
    if not columns or not is_frame(X):
        return X
    there = X.collect_schema().names() if is_polars_lazyframe(X) else list(X.columns)
    extra = [name for name in dict.fromkeys(columns) if name in there]
    return X.drop(columns=extra) if is_pandas_dataframe(X) else X.drop(extra)


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


def _count_rows(instances: Any) -> int:
    if is_polars_lazyframe(instances):
        return int(nw.from_native(instances).select(nw.len()).collect().item())
    return len(instances)


def _refuse_texts_and_sparse(X: Any) -> None:
    if issparse(X):
        hint = "pass X.toarray()" if X.shape[1] <= 1000 else "put TruncatedSVD(50) before it in a pipeline"
        what = f"X is a sparse matrix with {X.shape[1]:,} columns, but networks take dense rows"
        raise DataError(f"{what}; {hint}")
    series = is_pandas_series(X) or is_polars_series(X) or getattr(X, "ndim", 0) == 1
    if not (series or isinstance(X, list | tuple)) or not len(X):
        return
    first = next(iter(X))
    if isinstance(first, str) and first.lower().endswith((".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")):
        hint = "open them, [PIL.Image.open(name).convert('RGB') for name in X]"
        raise DataError(f"X has file names, such as {first[-40:]!r}; {hint}")
    if isinstance(first, str):
        steps = "TfidfVectorizer(), TruncatedSVD(50), ProportionClassifier()"
        raise DataError(f"X has texts, such as {first[:40]!r}; encode them with make_pipeline({steps})")
    if series and np.ndim(first) == 1:
        raise DataError(f"X is a column of vectors of {np.size(first)} numbers; pass numpy.stack(X)")


def _check_shape(x: Tensor, requested: Any, model: str | Callable[..., nn.Module]) -> None:
    """Raise DataError for instances of a shape that the network cannot take."""
    images = "images are bytes (n, channels, height, width)"
    hint = ""
    if x.ndim > 2 and model == "mlp" and requested == "mlp":
        hint = "an mlp takes rows: pass X.reshape(len(X), -1), or another model"
    elif x.ndim == 3 and (isinstance(model, str) or requested == "auto"):
        hint = f"{images}: pass X[:, None] if they are gray, or a model of your own"
    elif x.ndim == 4 and not is_images(x) and requested == "auto":
        hint = (
            f"{images}: pass X.astype(numpy.uint8) if pixels are from 0 to 255, "
            "(255 * X).round().astype(numpy.uint8) if they are from 0 to 1, or name a model"
        )
    elif x.ndim > 4 and requested == "auto":
        hint = f"{images}: pass X.reshape(-1, *X.shape[-3:]) if each is an image, with a bag for each"
    elif x.ndim != 4 and isinstance(model, str) and model != "mlp":
        hint = f"{images} for the model {model!r}; name another, such as 'mlp' for rows"
    if hint:
        raise DataError(f"X has instances of shape {tuple(x.shape[1:])}; {hint}", value=tuple(x.shape[1:]))


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


# --- score


def _score_proportions(probabilities: np.ndarray, y: Any, classes: np.ndarray) -> float:
    """The likelihood of the counts of bags; rows whose proportions `y` (n, k) are equal are one bag."""
    names = column_names(y)
    rows = np.asarray(y, dtype=np.float64)
    if names is not None:
        order = [names.index(name) for name in classes.tolist() if name in names]
        rows = rows[:, order]
    if rows.shape != probabilities.shape:
        what = f"y has proportions of shape {rows.shape}"
        hint = f"pass {probabilities.shape}, one column for each of {classes.tolist()}"
        raise DataError(f"{what}; {hint}", value=rows.shape)
    shares, bag = np.unique(rows, axis=0, return_inverse=True)
    groups = group_rows(bag.reshape(-1), len(rows))
    order = np.argsort(groups.number, kind="stable")
    log_probs = torch.from_numpy(np.log(np.maximum(probabilities, 1e-38)))[order]
    bags = Bags(
        log_probs, torch.from_numpy(groups.sizes), torch.from_numpy(shares).float(), torch.from_numpy(order),
        groups.names,
    )  # fmt: skip
    return SCORES["likelihood"](log_probs, bags)
