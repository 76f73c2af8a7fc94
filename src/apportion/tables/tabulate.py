"""Tables by group from files: `apportion tabulate`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from apportion._untrusted import name_list
from apportion.errors import DataError, SettingsError, did_you_mean
from apportion.estimator import ProportionClassifier
from apportion.pipeline import EpochState
from apportion.tables.diagnose import rows_of
from apportion.tables.predict import check_proportions, predict_proba, read_for
from apportion.tables.read import clean_errors
from apportion.tables.spec import TableSpec
from apportion.tabulation import CellCounter, group_bags, group_by


class Tabulation:
    """Counts of classes by group, of the rows of a table."""

    def __init__(
        self,
        classifier: ProportionClassifier,
        table: Path,
        by: Sequence[str],
        *,
        spec: TableSpec | None = None,
        missing: Sequence[str] = (),
    ) -> None:
        source = read_for(classifier, table, missing)
        there = source.original.collect_schema().names()
        for name in by:
            if name not in there:
                what = f"{table.name} has no column {name!r}{did_you_mean(name, there)}"
                raise DataError(f"{what}; it has {name_list(there, 20)}")
        if len(set(by)) < len(by):
            raise SettingsError("a column is named twice; name each --by once")
        ids: Any = None
        self.proportions: Any = None
        if spec is not None:
            if len(spec.bags) > 1:
                raise SettingsError("tabulate takes one --bag")
            checked = check_proportions(classifier, spec)
            checked.report.raise_problems()
            (name,) = spec.bag_names
            self.proportions = checked.proportions[name]
            with clean_errors(table):
                ids = checked.frame.select(name).collect().to_series()
        with clean_errors(table):
            columns = source.original.select(by).collect()
            n_rows = columns.height
            bags = group_bags(n_rows, ids, self.proportions)
            groups = group_by({name: columns[name] for name in by}, bags.source.numpy())
            self.classifier = classifier
            self.X = None if spec is None else rows_of(classifier, source, bags.source)
            self.counter = CellCounter(bags, groups, classifier.classes_.tolist())
            self.counter.add_model(predict_proba(classifier, source)[bags.source.numpy()])

    def replicate(self, replicates: int) -> Iterator[tuple[int, EpochState]]:
        """Fit networks to halves of the bags; yields (network, state) after every epoch."""
        if self.X is None:
            return
        seed = self.classifier.random_state or 0
        yield from self.counter.add_replicates(self.classifier, self.X, self.proportions, replicates, seed)

    def frame(self, level: float) -> pl.DataFrame:
        """One row per group and class."""
        return pl.DataFrame(self.counter.table(level), strict=False).fill_nan(None)
