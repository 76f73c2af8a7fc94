"""ProportionClassifier: both stages behind the interface of scikit-learn."""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

import apportion
from apportion._device import catch_out_of_memory, plain_network, resolve_device
from apportion._random import as_seed, preserve_random_state
from apportion._scratch import empty_array, pieces
from apportion._sources import source_checksum
from apportion.bags.arrays import as_floats
from apportion.bags.bags import Bags
from apportion.bags.build import build_bags_without_features
from apportion.bags.instances import (
    check_features_differ,
    check_instances_like_fit,
    encode_features,
    read_rows,
    shape_of,
    split_features,
    take_bag_columns,
)
from apportion.bags.problems import check_bags_differ, raise_problem
from apportion.checkpoints import FitCheckpoint, checksum, describe_parameter, open_checkpoint
from apportion.decisions import (
    check_decision,
    decide_by_bags,
    decide_by_prices,
    learn_decisions,
    warn_never_predicted,
)
from apportion.defaults import check_settings, check_shape, resolve_auto
from apportion.errors import ApportionWarning, SettingsError
from apportion.evaluate import predict_log_proba_on, score_bags
from apportion.fitting import fit_model
from apportion.methods import name_of
from apportion.methods.new_network import is_built_in
from apportion.networks.trees import BoostedTrees
from apportion.optim import describe_optimizer
from apportion.pipeline import EpochState
from apportion.pseudo_labels import transduce
from apportion.selection.epochs import EpochSelector
from apportion.selection.held_out import split_bags
from apportion.selection.scores import SCORES, likelihood_of_rows

LONG_STAGE = 600.0  # seconds; a warning announces a stage that takes longer


class ProportionClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of rows or images that learns from the class proportions of bags.

    Rows are classified by the average of a linear model, boosted trees and a network, which all learn from
    the proportions of the bags. A network (the teacher) is followed by a second one (the student): its
    predictions are turned into labels that match the proportions of every bag, and the student learns these.

    Rows are encoded, see `TableEncoder`: numbers are standardized, so nothing has to be scaled; in a data
    frame (pandas or polars), texts become categories, and dates and missing values are handled. Only for a
    network of your own are the rows of an array used as they are. Images are arrays of bytes
    (n, channels, height, width); channels may also be last.

    Parameters
    ----------
    model : str, callable or scikit-learn classifier, default="auto"
        For rows: "linear" (logistic regression on the proportions of bags), "trees" (boosted trees on them),
        "mlp" (a network), or "average" of these three. For images, a network: "conv13", "resnet9",
        "resnet18" or "wrn_28_2". Also a function `(shape, n_classes) -> torch.nn.Module` that makes a new
        network from the shape of an instance, and any scikit-learn classifier whose `fit` takes
        `sample_weight`: it is the student, and learns labels that match the proportions.
        "auto": for rows the average or, if `method`, `pseudo_labels`, `epochs` or another setting of networks
        is given, an mlp; for images a ResNet-9.
    method : str or callable, default="auto"
        How the teacher learns from proportions: "dllp", "count_likelihood", "llp_vat", "llp_gan", "rot",
        "two_views", "llp_mm", "easy_llp", "mixbag" or "mean_map" (linear models only), or a method of your
        own: a class, or a function that makes it from a network. `functools.partial` sets options. "auto":
        "dllp" for rows, "two_views" for images.
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
        the best score are kept. For networks only. None: those of the last epoch.
    calibrate : bool, default=False
        Whether to divide the logits by the temperature at which the counts of the validation bags are most
        likely. Predicted classes stay the same, probabilities change.
    device : str, default="auto"
        "cpu", "cuda" (or "cuda:1") or "mps". "auto": CUDA for images if available, else the CPU.
    random_state : int, RandomState instance or None, default=None
        An int makes fits repeatable, on a GPU up to rounding. None: a new seed for every fit.
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
    selection_ : dict or None
        What held-out bags chose for a linear model, trees or the average. "candidates": for each model its
        "weight", its "score" (the log-likelihood of the counts of the held-out bags, in nats per row) and its
        settings. "held_out_bags": their number, 0 if bags say less than 20 bags of equal size. "score" and
        "score_of_overall_shares": of the result, and of predicting the overall shares. "temperature": by
        what log-odds relative to the overall shares were divided.
    feature_importances_ : ndarray of shape (n_features,)
        For `model="trees"`: how much of what splits gain is due to each feature, summing to one. The features
        are those of `encoder_.get_feature_names_out()`.
    class_shares_ : ndarray of shape (n_classes,)
        The known class shares of all training rows.
    predicted_shares_ : ndarray of shape (n_classes,)
        The fraction of the training rows for which each class is the most probable one.
    never_predicted_ : str
        The classes that are never the most probable one, in words; empty if there are none.
    share_prices_ : ndarray of shape (n_classes,)
        What `predict(X, decide="shares")` subtracts from log-probabilities.
    bag_scores_ : dict
        For "train" and, if there are any, "validation" bags: "proportion_error", half the L1 distance between
        predicted and known proportions, and "bag_correlation" (None for fewer than six bags).
    validation_bags_ : list
        Ids of the bags that were not learned from.
    encoder_ : TableEncoder or None
        The encoder of the columns. None for images, and for arrays with a network of your own.
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
        Columns of a data frame that held bag ids or weights. `predict` ignores them.

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

    _quiet = False  # a copy, which does not warn of its classes

    # Routed metadata is split into folds by rows, and a table has one row per bag, so it cannot be routed.
    __metadata_request__predict = {"decide": UNUSED, "bags": UNUSED, "proportions": UNUSED}
    __metadata_request__fit = {
        "bags": True,
        "proportions": UNUSED,
        "known_labels": UNUSED,
        "checkpoint": UNUSED,
    }

    def __init__(
        self,
        model: Any = "auto",
        method: Any = "auto",
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
        self,
        X: Any,
        y: Any = None,
        *,
        bags: Any = None,
        proportions: Any = None,
        known_labels: Any = None,
        sample_weight: Any = None,
        checkpoint: Any = None,
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
        sample_weight : array-like of shape (n_samples,) or str, optional
            How much each row counts in its bag, such as the people or the area that it stands for, or the
            name of the column of `X` that has it, which is then not a feature. A row of weight 3 is three
            equal rows.
        checkpoint : str or path, optional
            A folder in which the state of the fit is saved now and then, and when it is interrupted. The same
            call continues from there and ends with the same bits. A finished fit removes the folder.

        Returns
        -------
        self : ProportionClassifier
            The fitted classifier. If fitting is interrupted, the classifier is unfitted.
        """
        if proportions is not None:
            _refuse_search_without_routing()
        for state in self.iter_fit(
            X,
            y,
            bags=bags,
            proportions=proportions,
            known_labels=known_labels,
            sample_weight=sample_weight,
            checkpoint=checkpoint,
        ):
            if self.verbose:
                sys.stdout.write(f"{describe_epoch(state, self.history_[-1])}\n")
            else:
                _warn_of_long_stage(state)
        return self

    def iter_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        bags: Any = None,
        proportions: Any = None,
        known_labels: Any = None,
        sample_weight: Any = None,
        checkpoint: Any = None,
    ) -> Iterator[EpochState]:
        """`fit` as a generator, with the same parameters.

        Yields
        ------
        EpochState
            After every epoch. The classifier is fitted when the generator is exhausted.
        """
        _delete_fitted_attributes(self)
        data: dict[str, Any] = {
            "bags": bags,
            "proportions": proportions,
            "known_labels": known_labels,
            "sample_weight": sample_weight,
        }
        if checkpoint is None or isinstance(checkpoint, FitCheckpoint):  # who opened it also removes it
            yield from self._iter_fit(X, y, **data, checkpoint=checkpoint)
            return
        with open_checkpoint(checkpoint) as opened:
            yield from self._iter_fit(X, y, **data, checkpoint=opened)
            opened.remove()

    def _iter_fit(
        self,
        X: Any,
        y: Any,
        *,
        bags: Any,
        proportions: Any,
        known_labels: Any,
        sample_weight: Any,
        checkpoint: FitCheckpoint | None,
    ) -> Iterator[EpochState]:
        check_selection(self.validation_fraction, self.select_by, self.calibrate)
        encode = _encodes_arrays(self.model)
        seed = as_seed(self.random_state)
        if self.random_state is None and checkpoint is not None and checkpoint.seed is not None:
            seed = checkpoint.seed
        rows = read_rows(
            self, X, y, bags=bags, sample_weight=sample_weight, needs_y=proportions is None, encode=encode
        )
        built = build_bags_without_features(
            rows.n,
            rows.y,
            bags=rows.bags,
            proportions=proportions,
            known_labels=known_labels,
            X=X,
            weight=rows.weight,
        )
        for problem in check_bags_differ(built.bags.proportions.double().numpy()):
            raise_problem(problem)
        parts = [built.bags]
        if self.validation_fraction:
            # with numbers to put predictions back in order after the split
            numbered = replace(built.bags, x=torch.arange(len(built.bags.x)).unsqueeze(1))
            parts = list(split_bags(numbered, self.validation_fraction, seed, self.select_by))
        x, encoder, in_file = encode_features(rows.instances, parts, rows.n)
        check_features_differ(x, encoder)
        self.encoder_: Any = encoder
        device = resolve_device(self.device, x)
        settings = resolve_auto(self.get_params(deep=False), x, device)
        check_settings(settings)
        shown = rows.instances if isinstance(rows.instances, np.ndarray) else x
        check_shape(shown, self.model, settings["model"])
        if in_file:
            _warn_of_slow_network(settings["model"], x)
        self.classes_ = built.classes
        self.history_ = []
        self.optimizers_ = {}
        self.resolved_ = {
            "model": settings["model"],
            "method": None if settings["method"] is None else name_of(settings["method"]),
            "pseudo_labels": settings["pseudo_labels"],
        }
        self.instance_shape_ = tuple(x.shape[1:])
        self.bytes_ = x.dtype == torch.uint8
        self.n_rows_ = rows.n
        self.bag_columns_ = rows.bag_columns
        self.device_ = str(device)
        with preserve_random_state(device), catch_out_of_memory(x, device):
            x = x.to(device)
            training, validation = split_features(parts, x)
            selector = None if validation is None else EpochSelector(validation, self.select_by)
            resume = None
            if checkpoint is not None:
                resume = checkpoint.start(_describe_fit(self, settings, seed, parts, x), seed)
            if resume is not None:
                self.history_ = resume["history"]
                self.optimizers_ = resume["described_optimizers"]
                if selector is not None:
                    selector.restore(resume["selector"])
            for state in fit_model(training, settings, seed, resume):
                if state.optimizers:  # the first of them is the classifier's
                    self.optimizers_[state.stage] = describe_optimizer(state.optimizers[0])
                score = {} if selector is None else selector.update(state)
                self.history_.append(_history_entry(state) | score)
                self.selection_ = state.selection
                if checkpoint is not None and not state.last:
                    more = {
                        "history": list(self.history_),
                        "described_optimizers": dict(self.optimizers_),
                        "selector": None if selector is None else selector.state(),
                    }
                    checkpoint.keep(state.state() | more)
                yield state
            if selector is None:
                model, self.temperature_ = plain_network(state.learner.classifier).cpu().eval(), 1.0
                self.best_epoch_ = state.stage, state.epoch.number
            else:
                model, self.temperature_ = selector.best_network(self.calibrate)
                self.best_epoch_ = selector.stage, selector.epoch
            log_probs = predict_log_proba_on(device, model, x, as_floats)
            n_learned = len(parts[0].source)  # rows of the training bags, which come first
            self.bag_scores_ = {"train": score_bags(log_probs[:n_learned], parts[0])}
            if len(parts) > 1:
                self.bag_scores_["validation"] = score_bags(log_probs[n_learned:], parts[1])
            decisions = learn_decisions(log_probs[:n_learned], parts[0], self.classes_)
            self.class_shares_ = decisions.class_shares
            self.predicted_shares_ = decisions.predicted_shares
            self.never_predicted_ = decisions.never_predicted
            self.share_prices_ = decisions.share_prices
            if self.never_predicted_ and not self._quiet:
                warn_never_predicted(self.never_predicted_)
            codes = _transduce(log_probs.to(device), parts, built.bags)
            self.transduction_ = _name_classes(codes, self.classes_)
        self.validation_bags_ = [] if len(parts) == 1 else list(parts[1].ids)
        self.model_ = model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = _encodes_arrays(self.model)
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in vars(self)

    @property
    def feature_importances_(self) -> np.ndarray:
        check_is_fitted(self)
        if not isinstance(self.model_, BoostedTrees):
            what = f"a {type(self.model_).__name__} has no feature importances"
            raise AttributeError(f"{what}; use sklearn.inspection.permutation_importance")
        importance = self.model_.importance.double().numpy()
        return importance / max(importance.sum(), np.finfo(float).tiny)

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
        instances = check_instances_like_fit(self, X)
        if isinstance(instances, Tensor):
            x = instances
        else:
            x = torch.from_numpy(self.encoder_.transform(instances))
        log_probs = predict_log_proba_on(resolve_device(self.device, x), self.model_, x, as_floats)
        probabilities = log_probs.double().exp().numpy()
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of `predict_proba`, of shape (n_samples, n_classes)."""
        return np.log(np.maximum(self.predict_proba(X), 1e-300))

    def predict(
        self, X: Any, *, decide: str = "argmax", bags: Any = None, proportions: Any = None
    ) -> np.ndarray:
        """The class of each instance.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, ...)
            Instances like those passed to `fit`.
        decide : {"argmax", "shares"}, default="argmax"
            "argmax": the most probable class, which is right most often, but names rare classes too rarely or
            never. "shares": the class of the highest log-probability minus price, where the prices
            (`share_prices_`) are those at which the training rows are predicted in their known shares.
        bags, proportions : optional
            With `decide="shares"`: the bags of these rows and their known proportions, as in `fit`. The
            predictions are the most probable ones that have the counts of every bag.

        Returns
        -------
        ndarray of shape (n_samples,)
            One of `classes_` for each instance.
        """
        check_is_fitted(self)
        check_decision(decide, bags, proportions)
        if bags is not None:
            X, bags = take_bag_columns(X, bags)
            codes = decide_by_bags(self.predict_proba(X), bags, proportions, classes=list(self.classes_))
            return self.classes_[codes]
        probabilities = self.predict_proba(X)
        if decide == "shares":
            return self.classes_[decide_by_prices(probabilities, self.share_prices_)]
        if self.never_predicted_:
            warn_never_predicted(self.never_predicted_)
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
            Weights of the rows.

        Returns
        -------
        float
            For labels the fraction of correct predictions. For proportions the log-likelihood of the counts
            of the bags, in nats per row, as `BagScore()` gives it; rows with equal proportions are one bag.
        """
        if len(shape_of(y)) == 2 and shape_of(y)[1] > 1:
            return likelihood_of_rows(self.predict_proba(X), y, self.classes_, sample_weight)
        return super().score(X, y, sample_weight)


# --- training


def _refuse_search_without_routing() -> None:
    """Raise SettingsError if a search or a cross-validation of scikit-learn passes proportions to `fit`.

    It would cut bags into folds and keep their proportions, and then score without any y: the error would
    become a score of NaN. Only an error in `fit` stops a search. With metadata routing scikit-learn refuses
    proportions itself. An estimator of the user's own between the two may make proportions of each fold.
    """
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == "sklearn.model_selection._validation":
            hint = "pass y=expand_proportions(proportions, bags) and bags= instead of proportions="
            raise SettingsError(f"a search cannot cut a table of bags into folds; {hint}")
        if module.split(".")[0] not in ("sklearn", "apportion"):
            return
        frame = frame.f_back


def check_selection(validation_fraction: float, select_by: str | None, calibrate: bool) -> None:
    """Raise `SettingsError` unless the three parameters are valid, alone and in combination."""
    if not isinstance(calibrate, bool | np.bool_):
        raise SettingsError(f"calibrate is {calibrate!r}; pass True or False")
    is_number = isinstance(validation_fraction, int | float | np.number)
    if not is_number or not 0 <= validation_fraction < 1:
        what = f"validation_fraction is {validation_fraction!r}"
        raise SettingsError(f"{what}; pass a fraction of the bags, at least 0 and less than 1")
    if select_by is not None and select_by not in SCORES:
        raise SettingsError(f"select_by is {select_by!r}; pass one of {', '.join(SCORES)}")
    if validation_fraction > 0:
        return
    if select_by is not None:
        raise SettingsError(f"select_by={select_by!r} needs validation bags; pass validation_fraction=0.1")
    if calibrate:
        raise SettingsError("calibrate=True needs validation bags; pass validation_fraction=0.1")


def _delete_fitted_attributes(estimator: BaseEstimator) -> None:
    """Delete the attributes of an earlier fit, so that an interrupted one cannot leave a mix of both."""
    for name in list(vars(estimator)):
        if name.endswith("_") and not name.startswith("_"):
            delattr(estimator, name)


def _encodes_arrays(model: Any) -> bool:
    """Whether rows of numbers are encoded by `TableEncoder` for this model.

    They are, unless the model is a function of the user's: its network may take raw numbers, such as codes
    for an embedding.
    """
    return not callable(model) or is_built_in(model)


def _describe_fit(
    classifier: ProportionClassifier,
    settings: Mapping[str, Any],
    seed: int,
    parts: Sequence[Bags],
    x: Tensor,
) -> dict[str, Any]:
    """What decides the result of a fit, by which its checkpoint is recognized."""
    described: dict[str, Any] = {
        "apportion": apportion.__version__,
        "sources": source_checksum(),
        "torch": str(torch.__version__),
        "device": str(x.device),
        "rows": len(x),
        "shape of a row": str(tuple(x.shape[1:])),
        "values of the features": checksum([x]),
        "classes": describe_parameter(classifier.classes_.tolist()),
    }
    names = {"sizes": "sizes of the bags", "source": "rows of the bags", "pure": "known labels"}
    for name in ("sizes", "source", "proportions", "precision", "pure", "weight"):
        tables = [getattr(part, name) for part in parts]
        described[names.get(name, name)] = checksum(tables)
    for name, value in settings.items():
        if name not in ("verbose", "device"):
            described[name] = describe_parameter(value)
    described["random_state"] = None if classifier.random_state is None else seed
    return described


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


def _warn_of_slow_network(model: Any, x: Tensor) -> None:
    """Warn that a network reads features from a file in random order."""
    if not isinstance(model, str) or model not in ("linear", "trees"):
        what = f"the features take {x.nbytes / 2**30:.1f} GiB and lie in a file, since memory is too small"
        hint = "pass model='trees' or 'linear', which read it from the first row to the last"
        name = repr(model) if isinstance(model, str) else "this model"
        message = f"{what}; {name} reads them in random order, which is slow; {hint}"
        warnings.warn(message, ApportionWarning, stacklevel=3)


def _transduce(log_probs: Tensor, parts: list[Bags], bags: Bags) -> np.ndarray:
    """Class codes of the user's rows that have the counts of every bag; `log_probs` follow the parts."""
    if len(parts) > 1:  # back to the order in which all bags were built
        where = torch.cat([part.x[:, 0] for part in parts])
        ordered = torch.empty_like(log_probs)
        ordered[where] = log_probs
        log_probs = ordered
    bags = replace(bags, proportions=bags.proportions.to(log_probs.device))
    return transduce(log_probs, bags)


def _name_classes(codes: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """`classes[codes]`, where there may be very many."""
    names = empty_array(len(codes), classes.dtype)
    for rows in pieces(len(codes)):
        names[rows] = classes[codes[rows]]
    return names
