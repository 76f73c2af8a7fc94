"""Tables by group from files: `apportion tabulate`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from apportion._untrusted import name_list
from apportion.bags.instances import read_weight
from apportion.errors import DataError, SettingsError, did_you_mean
from apportion.estimator import ProportionClassifier
from apportion.pipeline import EpochState
from apportion.selection.crossfit import take_instances
from apportion.tables.check import read_weight_column
from apportion.tables.diagnose import all_rows
from apportion.tables.predict import check_proportions, predict_proba, read_for
from apportion.tables.read import clean_errors
from apportion.tables.spec import TableSpec
from apportion.tabulation import CellCounter, add_replicates, group_bags, group_by, warn_without_support


class Tabulation:
    """Counts of classes by group of the rows of a table: one table for each list of columns in `by`."""

    def __init__(
        self,
        classifier: ProportionClassifier,
        table: Path,
        by: Sequence[Sequence[str]],
        *,
        spec: TableSpec | None = None,
        missing: Sequence[str] = (),
        weight: str | None = None,
    ) -> None:
        source = read_for(classifier, table, missing)
        there = source.original.collect_schema().names()
        names = list(dict.fromkeys(name for columns in by for name in columns))
        for name in names:
            if name not in there:
                what = f"{table.name} has no column {name!r}{did_you_mean(name, there)}"
                raise DataError(f"{what}; it has {name_list(there, 20)}")
        if any(len(set(columns)) < len(columns) for columns in by):
            raise SettingsError("a column is named twice; name each --by once")
        weights = read_weight_column(table, weight, source.original)
        ids: Any = None
        self.proportions: Any = None
        if spec is not None:
            if len(spec.bags) > 1:
                raise SettingsError("tabulate takes one --bag")
            checked = check_proportions(classifier, spec)
            checked.report.raise_problems()
            (bag,) = spec.bag_names
            self.proportions = checked.proportions[bag]
            with clean_errors(table):
                ids = checked.frame.select(bag).collect().to_series()
        with clean_errors(table):
            columns = source.original.select(names).collect()
            n_rows = columns.height
            bags = group_bags(n_rows, ids, self.proportions, read_weight(weights, n_rows))
            self.classifier = classifier
            self.X = None
            if spec is not None:
                self.X = take_instances(all_rows(classifier, source), bags.source.numpy())
            probabilities = predict_proba(classifier, source)[bags.source.numpy()]
            self.counters = []
            for each in by:
                groups = group_by({name: columns[name] for name in each}, bags.source.numpy())
                counter = CellCounter(bags, groups, classifier.classes_.tolist())
                counter.add_model(probabilities)
                self.counters.append(counter)

    def replicate(self, replicates: int) -> Iterator[tuple[int, EpochState]]:
        """Fit copies of the model to halves of the bags; yields (number of the copy, state)."""
        if self.X is None:
            return
        seed = self.classifier.random_state or 0
        model, X, proportions = self.classifier, self.X, self.proportions
        yield from add_replicates(self.counters, model, X, proportions, replicates, seed)
        warn_without_support(self.no_support)

    @property
    def no_support(self) -> str:
        """Why the bags do not show that the model works, once `replicate` has found out; "" if they do."""
        return self.counters[0].no_support

    def frames(self, level: float) -> list[pl.DataFrame]:
        """Each table: one row per group and class."""
        return [pl.DataFrame(counter.table(level), strict=False).fill_nan(None) for counter in self.counters]
