"""What a table says about a saved model, for its page: the diagnosis, predicted bags, columns and groups.

Everything comes from the code behind `apportion diagnose` and `apportion tabulate`, so the page has their
numbers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from apportion.bags.bags import Bags, bag_means
from apportion.errors import SettingsError
from apportion.estimator import ProportionClassifier
from apportion.selection.calibration import count_residuals, fit_temperature
from apportion.selection.diagnosis import Diagnosis
from apportion.tables.diagnose import (
    Evaluation,
    diagnose_probabilities,
    other_bags,
    plan_diagnosis,
    predict_bags,
)
from apportion.tables.importance import (
    MOST_CLASSES,
    ColumnImportance,
    permutation_importances,
    trees_of,
)
from apportion.tables.predict import columns_of
from apportion.tables.spec import TableSpec
from apportion.tables.tabulate import Tabulation


class Step(NamedTuple):
    """How far the work on a page is."""

    task: str
    part: str  # of the task
    done: int
    total: int


class PredictedBags(NamedTuple):
    """Known and predicted shares (m, k) of bags, by predictions that have learned from them or have not."""

    bags: Bags
    predicted: Tensor
    gap: Tensor  # known minus predicted counts
    variance: Tensor  # of the counts, by chance
    learned: bool


class ModelEvidence:
    """What a table with bags says about a classifier. `collect` fills in the attributes.

    Without bags (`spec` is None), only tables by group. `train=False` trains nothing: no models that
    predict bags that they have not learned from, unless some were held out, and no intervals.
    """

    def __init__(
        self,
        classifier: ProportionClassifier,
        table: Path,
        spec: TableSpec | None,
        *,
        by: Sequence[Sequence[str]] = (),
        missing: Sequence[str] = (),
        new: bool = False,
        folds: int | None = None,
        train: bool = True,
        level: float = 0.9,
        replicates: int = 10,
        weight: str | None = None,
    ) -> None:
        if spec is not None and len(spec.bags) > 1:
            raise SettingsError("a page takes one --bag at a time; write a page for each grouping")
        if spec is None and not by:
            raise SettingsError("name the bags of the table with --bag, or the groups to count with --by")
        self.classifier = classifier
        self.table = table
        self.by = tuple(tuple(columns) for columns in by)
        self.level = level
        self.replicates = replicates if train and spec is not None else 0
        self.evaluation: Evaluation | None = None
        self.others: Evaluation | None = None
        self.diagnosis: Diagnosis | None = None
        self.predicted: list[PredictedBags] = []
        self.temperature: float | None = None
        self.importances: list[ColumnImportance] = []
        self.tables: list[pl.DataFrame] = []
        self.no_support = ""  # why intervals of tables are no more than bounds
        self._tabulation: Tabulation | None = None
        if self.by:
            self._tabulation = Tabulation(
                classifier, table, self.by, spec=spec, missing=missing, weight=weight
            )
        if spec is not None:
            self.evaluation = plan_diagnosis(classifier, spec, new=new, folds=folds, train=train)
            self.others = other_bags(classifier, spec, self.evaluation)

    def collect(self) -> Iterator[Step]:
        """Do all the work; yields how far it is."""
        if self.evaluation is not None:
            yield from self._diagnose(self.evaluation)
            yield from self._permute(self.evaluation)
        if self._tabulation is not None:
            for replicate, state in self._tabulation.replicate(self.replicates):
                task = f"model {replicate + 1} of {self.replicates} for intervals"
                yield Step(task, f"{state.stage} stage", state.epoch.number, state.epoch.total)
            self.no_support = self._tabulation.no_support
            self.tables = self._tabulation.frames(self.level)

    def _diagnose(self, evaluation: Evaluation) -> Iterator[Step]:
        probabilities = np.empty((len(evaluation.bags.source), len(self.classifier.classes_)))
        for fold, state in predict_bags(self.classifier, evaluation, probabilities):
            task = f"model {fold + 1} of {evaluation.folds} for the diagnosis"
            yield Step(task, f"{state.stage} stage", state.epoch.number, state.epoch.total)
        self.diagnosis = diagnose_probabilities(self.classifier, probabilities, evaluation)
        log_probs = as_log_probs(probabilities)
        bags = evaluation.bags
        self.predicted = [predicted_bags(log_probs, bags, learned=evaluation.origin == "training")]
        if evaluation.origin != "training" and bags.n_classes <= MOST_CLASSES:
            self.temperature = fit_temperature(log_probs, bags.sizes, bags.proportions, bags.weight)
        if self.others is not None:
            log_probs = as_log_probs(self.classifier.predict_proba(self.others.X))
            self.predicted.append(predicted_bags(log_probs, self.others.bags, learned=True))

    def _permute(self, evaluation: Evaluation) -> Iterator[Step]:
        columns = columns_of(self.classifier)
        only_trees = trees_of(self.classifier.model_) is self.classifier.model_
        if not columns or only_trees or evaluation.bags.n_classes > MOST_CLASSES:
            return
        total = len(columns)
        for found in permutation_importances(self.classifier, evaluation.X, evaluation.bags):
            self.importances.append(found)
            yield Step("permuted columns", "", len(self.importances), total)


def as_log_probs(probabilities: np.ndarray) -> Tensor:
    return torch.from_numpy(np.log(np.maximum(probabilities, 1e-38)))


def predicted_bags(log_probs: Tensor, bags: Bags, *, learned: bool) -> PredictedBags:
    """The bags as predicted by log-probabilities (N, k) of their rows."""
    gap, variance = count_residuals(log_probs, bags)
    predicted = bag_means(log_probs.exp(), bags.sizes, bags.weight)
    return PredictedBags(bags, predicted, gap, variance, learned)
