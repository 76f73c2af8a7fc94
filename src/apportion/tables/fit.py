"""From a checked table to a fitted classifier, and what its folder tells about the data.

The estimator does the work: `apportion fit` gives the weights of `ProportionClassifier.fit` on the same
frame. A LazyFrame is passed on, so that features are written straight to their place, sorted by bag.
"""

import hashlib
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import polars as pl

from apportion.checkpoints import FitCheckpoint
from apportion.estimator import ProportionClassifier
from apportion.pipeline import EpochState
from apportion.saving import About, describe_quality
from apportion.tables.check import CheckedTable, read_weight_column
from apportion.tables.images import read_all_images
from apportion.tables.read import clean_errors
from apportion.tables.spec import TableSpec

WEIGHT = "weight of a row"  # a line of the card: the column that was passed with --weight
BAG_COLUMN = "\0bag "  # starts the name of a copy of a column of bags that is a feature, too


def fit(
    classifier: ProportionClassifier,
    spec: TableSpec,
    checked: CheckedTable,
    checkpoint: FitCheckpoint | None = None,
) -> Iterator[EpochState]:
    """Fit a classifier to a table without problems; yields the state of training after every epoch."""
    bags: dict[Hashable, Any] = dict(zip(spec.bag_names, bag_columns(spec, checked), strict=True))
    proportions: Any = dict(checked.proportions)
    known_labels = None
    with clean_errors(spec.table):
        if checked.image is not None:
            n_rows = int(checked.frame.select(pl.len()).collect().item())
            X: Any = np.empty((n_rows, *checked.image.shape), np.uint8)
            start = 0
            for images in read_all_images(checked.image, spec.table, checked.frame):
                X[start : start + len(images)] = images
                start += len(images)
            bags = {name: checked.frame.select(ids).collect().to_series() for name, ids in bags.items()}
        else:
            X = checked.frame.select(*feature_columns(spec, checked), *bags.values())
            bags = {name: ids.meta.output_name() for name, ids in bags.items()}
        if spec.known_labels is not None:
            column = checked.frame.select(pl.col(spec.known_labels).cast(pl.String)).collect().to_series()
            known_labels = {row: label for row, label in enumerate(column.to_list()) if label is not None}
        if len(bags) == 1:
            (bags,) = bags.values()
            (proportions,) = proportions.values()
        weight = read_weight_column(spec.table, spec.weight, checked.frame)
        yield from classifier.iter_fit(
            X,
            bags=bags,
            proportions=proportions,
            known_labels=known_labels,
            sample_weight=weight,
            checkpoint=checkpoint,
        )


def feature_columns(spec: TableSpec, checked: CheckedTable) -> list[pl.Expr]:
    """The columns to learn from; those that are categories whatever they look like become texts."""
    categories = (*spec.categorical, *spec.keep)
    return [
        pl.col(name).cast(pl.String) if name in categories else pl.col(name) for name in checked.report.kinds
    ]


def bag_columns(spec: TableSpec, checked: CheckedTable) -> list[pl.Expr]:
    """The columns of bags, under other names where they are features, too."""
    schema = checked.frame.collect_schema()
    columns = []
    for name in spec.bag_names:
        ids = pl.col(name)
        if schema[name] in (pl.Categorical, pl.Enum):
            ids = ids.cast(pl.String)
        columns.append(ids.alias(f"{BAG_COLUMN}{name}") if name in spec.keep else ids)
    return columns


def fingerprint(bags: Iterable[Hashable], sizes: Iterable[int] = ()) -> str:
    """A hash of bag ids and sizes, by which a table is recognized as the one that was learned from."""
    lines = [*map(str, bags), *map(str, sizes)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def describe_fit(spec: TableSpec, checked: CheckedTable, classifier: ProportionClassifier) -> About:
    """What the model's folder tells about the data it learned from."""
    aligned = list(checked.aligned.values())
    first = aligned[0]
    sources = [(spec.table if bag.file is None else bag.file).name for bag in spec.bags]
    data: dict[str, Any] = {
        "table": spec.table.name,
        "bags": sum(len(each.sizes) for each in aligned),
        "column of bags": ", ".join(spec.bag_names),
        "validation bags": len(classifier.validation_bags_),
        "smallest and largest bag": f"{first.sizes.min()}, {first.sizes.max()}",
        "proportions from": ", ".join(sources),
    }
    options: dict[str, Any] = {f"std of {bag.name}": bag.std for bag in spec.bags if bag.std is not None}
    for name in ("normalize", "missing_bags", "missing_cells", "rest"):
        value = getattr(spec, name)
        if value not in (False, "error", None):
            options[name] = value
    if spec.known_labels is not None:
        options["known labels"] = f"column {spec.known_labels}"
    if spec.weight is not None:
        options[WEIGHT] = f"column {spec.weight}"
    return About(
        bags=sum(len(each.sizes) for each in aligned) - len(classifier.validation_bags_),
        fingerprint=",".join(fingerprint(each.bags, each.sizes.tolist()) for each in aligned),
        held_out=len(classifier.validation_bags_),
        held_out_names=fingerprint(classifier.validation_bags_),
        groupings=len(spec.bags),
        known_labels=spec.known_labels is not None,
        missing=spec.missing,
        image=spec.image,
        resize=checked.image is not None and checked.image.resize,
        data=data | options,
        quality=describe_quality(classifier),
    )
