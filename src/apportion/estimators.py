"""scikit-learn's way in: a thin skin over both stages, and a score for held-out bags."""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from apportion._device import catch_out_of_memory, resolve_device
from apportion._random import as_seed, preserve_random_state
from apportion.evaluate import predict_log_proba_on
from apportion.fitting import forget, stage_settings, two_stages
from apportion.fitting.auto import told
from apportion.fitting.shapes import as_fitted, check_alike
from apportion.fitting.telling import line_of, tell
from apportion.fitting.validating import check_labels, validated, validated_again, warn_of_sizes
from apportion.intake.forms import rows_by_name
from apportion.intake.given import placed_labels, refuse_another_order
from apportion.intake.instances import as_floats, as_instances
from apportion.intake.joining import transduced
from apportion.intake.pictures import stacked
from apportion.intake.several import mended_bags
from apportion.selection.epochs import EpochSelector, check_selection, split_bags


class ProportionClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of instances, learned from the class proportions of bags; its page is docs/estimator.md.

    `backbone` is a name or a function (shape of an instance, number of classes) -> nn.Module. Settings of
    None follow the sizes of the bags, those of "auto" whether instances are rows or images as bytes. Features
    of rows are taken as they are: scale them before.
    """

    # a table has no row an instance: folds would cut it wrongly or not at all; expand makes it rows
    __metadata_request__fit = {
        **{"bags": True, "classes": True}, **dict.fromkeys(("proportions", "counts", "given"), UNUSED),
    }  # fmt: skip

    def __init__(
        self,
        first_stage: str = "auto",
        second_stage: str | None = "auto",
        *,
        backbone: Any = "auto",
        labels: str = "auto",
        reg: float = 1.0,
        first_epochs: int | None = None,
        second_epochs: int | None = None,
        rate: float | None = None,
        second_rate: float | None = None,
        batch_size: int | None = None,
        mirror: bool = True,
        noise: float | str | None = None,
        normalize: bool = False,
        unlabeled: bool = False,
        fill: bool = False,
        held_out: float = 0.0,
        choose: str | None = None,
        calibrate: bool = False,
        device: str = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.first_stage = first_stage
        self.second_stage = second_stage
        self.backbone = backbone
        self.labels = labels
        self.reg = reg
        self.first_epochs = first_epochs
        self.second_epochs = second_epochs
        self.rate = rate
        self.second_rate = second_rate
        self.batch_size = batch_size
        self.mirror = mirror
        self.noise = noise
        self.normalize = normalize
        self.unlabeled = unlabeled
        self.fill = fill
        self.held_out = held_out
        self.choose = choose
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, X: Any, y: Any = None, *, bags: Any = None, proportions: Any = None, counts: Any = None,
        classes: Any = None, given: Any = None,
    ) -> Self:  # fmt: skip
        """Learn from labels, labels in bags, shares `y` (n, k) of each row's bag, or a table of the bags;
        `given` {row: class} are labels of single rows that are known beside a table. `bags` may be {grouping:
        ids}, with {grouping: table} for the proportions or counts: a row then lies in a bag of each."""
        forget(self)
        asked = self.get_params(deep=False)
        asked |= {"seed": as_seed(asked.pop("random_state"))}
        named, _ = asked.pop("device"), asked.pop("verbose")
        options = {name: asked.pop(name) for name in ("noise", "normalize", "unlabeled", "fill")}
        check_selection(*(asked.pop(name) for name in ("held_out", "choose", "calibrate")))
        y, classes = rows_by_name(y, classes)
        refuse_another_order(X, bags)
        given = placed_labels(given, X, bags)  # by the index of X, which validation drops
        X, y = validated(self, stacked(X), y, proportions is not None or counts is not None)
        device = resolve_device(named, first := as_instances(X[:1]))
        settings = stage_settings(**(asked := told(asked, first, device)))
        if asked["backbone"] == "mlp":
            warn_of_sizes(X, getattr(self, "feature_names_in_", None))
        table = {"proportions": proportions, "counts": counts, "classes": classes, "given": given}
        data, self.classes_, relax = mended_bags(X, y, bags, **table, **options)
        self.instance_shape_, self.n_rows_, self.device_ = tuple(data.x.shape[1:]), len(X), str(device)
        self.backbone_, self.bytes_, self.history_ = asked["backbone"], data.x.dtype == torch.uint8, []
        with preserve_random_state(device), catch_out_of_memory(data.x, device):
            part, held = split_bags(data := data.to(device), self.held_out, asked["seed"], self.choose)
            chosen = EpochSelector(held, self.choose)
            for epoch_state in two_stages(part, relax=relax, **settings):
                self.history_.append(line_of(epoch_state) | (said := chosen.update(epoch_state)))
                tell(epoch_state, said, self.verbose)
        self.classifier_, self.temperature_ = chosen.best_network(self.calibrate)
        self.chosen_, self.optimizers_ = (chosen.stage, chosen.epoch), chosen.optimizers
        log_probs = predict_log_proba_on(device, self.classifier_, data.x, as_floats).to(device)
        self.transduction_ = self.classes_[transduced(log_probs, data, relax)]
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "classifier_" in vars(self)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, k) of the classes in `classes_`."""
        check_is_fitted(self)
        x = as_instances(validated_again(self, as_fitted(self, X)))
        check_alike(x, self.instance_shape_, self.bytes_)
        log_probs = predict_log_proba_on(resolve_device(self.device, x), self.classifier_, x, as_floats)
        shares = log_probs.double().exp().numpy()
        return shares / shares.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each instance."""
        shares = self.predict_proba(X)  # first, since it asks whether classes_ is there
        return self.classes_[shares.argmax(1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of instances that are right by their labels `y` (n,)."""
        check_labels(y)
        return super().score(X, y, sample_weight)
