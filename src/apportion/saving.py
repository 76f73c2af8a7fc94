"""ProportionClassifier to a model's folder and back."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from apportion.errors import ModelError
from apportion.estimators import ProportionClassifier
from apportion.fitting.auto import told
from apportion.models import Facts, Model, load_model, named, save_model
from apportion.networks import NETWORKS

_PLAIN = (str, int, float, bool, type(None))


def save(classifier: ProportionClassifier, folder: str | Path) -> None:
    """Write a fitted classifier to a new folder: weights, JSON and a card, no pickle.

    Its backbone must be one of this package's: a name, or a `functools.partial` of one with keywords.
    """
    if not isinstance(classifier, ProportionClassifier):
        what = f"a {type(classifier).__name__} is no ProportionClassifier"
        remedy = "the last step, pipeline[-1], and keep the others apart, such as by joblib"
        raise ModelError(f"{what}; of a search save best_estimator_, of a pipeline {remedy}")
    check_is_fitted(classifier)
    name, options = named(classifier.backbone_)
    kind = torch.uint8 if classifier.bytes_ else torch.float32
    example = torch.zeros(1, *classifier.instance_shape_, dtype=kind)
    done = told(classifier.get_params(deep=False), example, example.device)
    settings = classifier.get_params(deep=False) | {"backbone": name}
    settings = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings.items()}
    settings = {key: value if _is_plain(value) else str(value) for key, value in settings.items()}
    if not isinstance(settings["random_state"], int | None):
        settings["random_state"] = None  # a generator's state is not kept
    names = getattr(classifier, "feature_names_in_", None)
    classes = tuple(classifier.classes_.tolist())
    data = {"rows": classifier.n_rows_, "instances": "bytes" if classifier.bytes_ else "floats"}
    data |= {"first stage": done["first_stage"], "second stage": done["second_stage"]}
    facts = Facts(
        rows=classifier.n_rows_, bytes=classifier.bytes_, second_stage=done["second_stage"] is not None,
        stage=classifier.chosen_[0], epoch=classifier.chosen_[1], temperature=classifier.temperature_,
        first_optimizer=classifier.optimizers_.get("first", ""),
        second_optimizer=classifier.optimizers_.get("second", ""), device=classifier.device_,
    )  # fmt: skip
    model = Model(
        classifier.classifier_, name, classifier.instance_shape_, classes, options,
        feature_names=None if names is None else tuple(names.tolist()), facts=facts, settings=settings,
        data=data, quality=_quality(classifier),
    )  # fmt: skip
    save_model(model, Path(folder))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):  # noise by grouping
        return all(isinstance(each, _PLAIN) for both in value.items() for each in both)
    return isinstance(value, _PLAIN)


def load(folder: str | Path) -> ProportionClassifier:
    """A classifier that predicts as the saved one did; `transduction_` and `history_` stay behind."""
    model = load_model(Path(folder))
    if model.columns is not None:
        raise ModelError(f"{folder} takes tables, not arrays; use `apportion predict {folder} TABLE`")
    known = list(ProportionClassifier().get_params(deep=False))
    if unknown := set(model.settings) - set(known):  # one that is missing is younger than the model
        raise ModelError(f"{folder} has the settings {sorted(unknown)}; there are {sorted(known)}")
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in model.options.items()}
    backbone = partial(NETWORKS[model.backbone], **options) if options else model.backbone
    classifier = ProportionClassifier(**(dict(model.settings) | {"backbone": backbone}))
    classifier.backbone_ = backbone
    classifier.classifier_, classifier.instance_shape_ = model.network, model.shape
    classifier.classes_, classifier.history_ = np.asarray(model.classes), []
    classifier.bytes_, classifier.n_rows_ = model.facts.bytes, model.facts.rows
    classifier.chosen_ = model.facts.stage, model.facts.epoch
    classifier.temperature_, classifier.device_ = model.facts.temperature, model.facts.device
    turned = {"first": model.facts.first_optimizer, "second": model.facts.second_optimizer}
    classifier.optimizers_ = {stage: words for stage, words in turned.items() if words}
    if len(model.shape) == 1:
        vars(classifier)["n_features_in_"] = model.shape[0]
    if model.feature_names is not None:
        vars(classifier)["feature_names_in_"] = np.asarray(model.feature_names, dtype=object)
    return classifier


def _quality(classifier: ProportionClassifier) -> dict[str, Any]:
    """What is known of the epoch whose weights are kept: the last one, unless held-out bags chose another."""
    (stage, number), by = classifier.chosen_, classifier.choose
    lines = [line for line in classifier.history_ if (line["stage"], line["epoch"]) == (stage, number)]
    which = "last epoch, " if by is None else "chosen epoch, "
    quality: dict[str, Any] = {which + key: value for line in lines for key, value in line.items()}
    if by is not None and stage:
        quality["chosen epoch"] = f"{number} of the {stage} stage, by {by}"
    return quality | ({"temperature": classifier.temperature_} if classifier.calibrate else {})
