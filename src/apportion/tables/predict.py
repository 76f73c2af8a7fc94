"""Predictions for tables: by a classifier alone, or given the proportions of the bags of the new rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from apportion._scratch import empty_array
from apportion._untrusted import name_list
from apportion.conditioning import condition_on_proportions
from apportion.decisions import decide_by_bags, decide_by_prices
from apportion.encoding import Column, read_batches
from apportion.errors import DataError, ModelError, did_you_mean
from apportion.estimator import ProportionClassifier
from apportion.saving import About
from apportion.tables.check import CheckedTable, check
from apportion.tables.images import MAX_SIDE, MIN_SIDE, ImageColumn, read_all_images
from apportion.tables.read import clean_errors, column_names, csv_dialect, is_text_file, read_table
from apportion.tables.spec import SHOWN, CheckReport, TableSpec

ASSIGNED = "assigned"  # the column of classes that have the counts of every bag
ROW = "\0row"  # no user's column has this name
FEATURE = "\0feature "  # starts the names of columns as the classifier takes them
COLUMNS_AT_ONCE = 8
FAR = 10  # standard deviations: at most one training row in FAR² was so far from the mean (Chebyshev)
TRUTH_VALUES = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


def predict_table(
    classifier: ProportionClassifier,
    table: Path,
    *,
    missing: Sequence[str] = (),
    spec: TableSpec | None = None,
    typed: bool = False,
    decide: str = "argmax",
) -> tuple[pl.LazyFrame, list[str]]:
    """The table with a column for the predicted class and one for the probability of each, and notes.

    With a `spec` of bags and their proportions, probabilities are conditioned on these, and another column
    has the most likely classes that have the counts of every bag. `decide` is that of
    `ProportionClassifier.predict`; "shares" predicts these classes. The texts of a CSV
    stay as they are written, unless `typed` asks for numbers, dates and truth values in the columns that the
    classifier takes for such, as for a Parquet file.
    """
    names = ["predicted", *([] if spec is None else [ASSIGNED])]
    names += [f"p({name})" for name in classifier.classes_]
    source = read_for(classifier, table, missing)
    for name in names:
        if name in source.frame.collect_schema():
            raise DataError(f"{table.name} has a column {name!r} already; rename it")
    notes: list[str] = []
    given_bags: tuple[Any, Any] | None = None
    with clean_errors(table):
        if spec is not None:
            checked = check_proportions(classifier, spec)
            checked.report.raise_problems()
            notes += checked.report.notes
            given_bags = _bags_and_proportions(spec, checked)
        elif decide == "argmax" and classifier.never_predicted_:
            notes.append(f"{classifier.never_predicted_}; --decide shares predicts in the known shares")
        notes += note_differences(classifier, source.frame)
        given = source.original
        if is_text_file(table) and not typed:
            given = read_table(table, texts=None)
            if csv_dialect(table).decimal_comma:  # the output has decimal points
                given = given.with_columns(_number_columns(classifier, source.frame))
        if given_bags is None and source.image is None:
            return _predict_batches(classifier, source, given, names, decide), notes
        probabilities = predict_proba(classifier, source)
        columns = _prediction_columns(classifier, probabilities, names, decide, given_bags)
        return pl.concat([given, pl.DataFrame(columns).lazy()], how="horizontal"), notes


def _prediction_columns(
    classifier: ProportionClassifier,
    probabilities: np.ndarray,
    names: Sequence[str],
    decide: str,
    given_bags: tuple[Any, Any] | None = None,
) -> list[pl.Series]:
    """Columns of classes and probabilities, `names`, of some rows or, with bags and proportions, of all."""
    assigned = None
    codes = None
    if given_bags is not None:
        classes = list(classifier.classes_)
        assigned = decide_by_bags(probabilities, *given_bags, classes=classes)
        if decide == "shares":
            codes = assigned
        probabilities = condition_on_proportions(probabilities, *given_bags, classes=classes)
    elif decide == "shares":
        codes = decide_by_prices(probabilities, classifier.share_prices_)
    if codes is None:
        codes = probabilities.argmax(1)
    columns = [pl.Series("predicted", classifier.classes_).gather(codes)]
    if assigned is not None:
        columns.append(pl.Series(ASSIGNED, classifier.classes_).gather(assigned))
    for j, name in enumerate(names[-len(classifier.classes_) :]):
        columns.append(pl.Series(name, probabilities[:, j].astype(np.float32)))
    return columns


def _predict_batches(
    classifier: ProportionClassifier, source: "Source", given: pl.LazyFrame, names: Sequence[str], decide: str
) -> pl.LazyFrame:
    """The `given` rows with predictions. They are read, predicted and written a batch at a time."""
    columns = [column.name for column in columns_of(classifier)]
    if given is source.original:
        converted = (value.alias(FEATURE + value.meta.output_name()) for value in source.converted)
        both = given.with_columns(converted)
    else:  # texts of a CSV, which are in memory
        features = source.frame.select(pl.col(name).name.prefix(FEATURE) for name in columns)
        both = pl.concat([given, features], how="horizontal")
    schema = given.collect_schema()
    given_names = schema.names()
    none = _prediction_columns(classifier, np.zeros((0, len(classifier.classes_))), names, decide)
    schema = {**schema, **{column.name: column.dtype for column in none}}

    def scored(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        row = 0
        with clean_errors(source.table):
            for batch in _batches_of(both, source.table):
                X = batch.select(pl.col(f"{FEATURE}{name}").alias(name) for name in columns)
                probabilities = _checked_proba(classifier, X, source.table, row)
                row += batch.height
                batch = batch.select(given_names).with_columns(
                    _prediction_columns(classifier, probabilities, names, decide)
                )
                if predicate is not None:
                    batch = batch.filter(predicate)
                yield batch if with_columns is None else batch.select(with_columns)

    return register_io_source(scored, schema=schema)


# --- reading a table as the classifier's own was read


@dataclass(frozen=True)
class Source:
    """A table with the columns that a classifier takes, in their types."""

    table: Path
    original: pl.LazyFrame  # as it was read
    converted: list[pl.Expr]  # the columns of the classifier in its types
    image: ImageColumn | None = None

    @property
    def frame(self) -> pl.LazyFrame:
        """The table with the columns of the classifier in its types."""
        return self.original.with_columns(self.converted)


def read_for(classifier: ProportionClassifier, table: Path, missing: Sequence[str] = ()) -> Source:
    """A table as the classifier's own was read. Values that it cannot take are an error with all of them."""
    about = about_of(classifier)
    image = image_column_of(classifier)
    encoder = classifier.encoder_
    if image is None and (encoder is None or not encoder.named):
        raise ModelError("the model takes arrays, not tables; use apportion.load and predict_proba")
    columns = columns_of(classifier)
    names = [column.name for column in columns] if image is None else [image.name]
    missing = tuple(dict.fromkeys((*about.missing, *missing)))
    texts: list[str] = []
    if is_text_file(table):
        typed = {column.name for column in columns if column.kind != "category"}
        texts = [name for name in column_names(table) if name not in typed]
    frame = read_table(table, texts=texts, missing=missing)
    there = frame.collect_schema().names()
    for name in names:
        if name not in there:
            what = f"{table.name} has no column {name!r}{did_you_mean(name, there)}, which the model needs"
            raise DataError(f"{what}; it has {name_list(there, 20)}")
    with clean_errors(table):
        return Source(table, frame, convert_columns(frame, columns, table), image)


def about_of(classifier: ProportionClassifier) -> About:
    """What the folder of a loaded classifier tells about its data."""
    return getattr(classifier, "about_", About())


def columns_of(classifier: ProportionClassifier) -> tuple[Column, ...]:
    """The columns that the classifier takes; none if it takes images."""
    return () if classifier.encoder_ is None else classifier.encoder_.columns_


def image_column_of(classifier: ProportionClassifier) -> ImageColumn | None:
    """The column of images that the classifier was fitted on by `apportion fit`."""
    about = about_of(classifier)
    if about.image is None:
        return None
    shape = classifier.instance_shape_
    if len(shape) != 3 or not classifier.bytes_:
        raise ModelError("the model names a column of images, but does not take images")
    if about.resize and not MIN_SIDE <= min(shape[1:]) <= max(shape[1:]) <= MAX_SIDE:
        raise ModelError(
            f"the model resizes images to {shape[1]} × {shape[2]} pixels, not {MIN_SIDE} to {MAX_SIDE}"
        )
    return ImageColumn(about.image, shape, about.resize)


def convert_columns(frame: pl.LazyFrame, columns: Sequence[Column], table: Path) -> list[pl.Expr]:
    """These columns of a frame in the types that they had in training.

    Raises a DataError that lists the rows with values that have no such type, or are infinite.
    """
    schema = frame.collect_schema()
    converted = {
        column.name: _convert(pl.col(column.name), schema[column.name], column.kind) for column in columns
    }
    wrong = {}
    for column in columns:
        value = converted[column.name]
        unreadable = value.is_null() & pl.col(column.name).is_not_null()
        if column.kind == "number":
            unreadable |= value.is_infinite().fill_null(False)
            if schema[column.name] == pl.String:  # the text nan is no number
                unreadable |= value.is_nan().fill_null(False)
        wrong[column.name] = unreadable
    report = CheckReport()
    if wrong:
        n_wrong = _collect_row(frame, [[expr.sum().alias(name)] for name, expr in wrong.items()])
        for column in columns:
            if n_wrong[column.name]:
                rows = frame.select(column.name).with_row_index(ROW, offset=1)
                first = rows.filter(wrong[column.name]).head(SHOWN).collect().rows()
                cases = (
                    f"{table.name}, row {row}, column {column.name!r}, has {value!r}" for row, value in first
                )
                hint = f"give a {column.kind}, or leave it empty"
                report.add_cases("type", cases, n_wrong[column.name], hint)
    report.raise_problems()
    return list(converted.values())


def _convert(value: pl.Expr, dtype: pl.DataType, kind: str) -> pl.Expr:
    """A column as the kind of values that training had; null where a value is no such thing."""
    if kind == "category":
        return value.cast(pl.String)
    if kind == "boolean":
        if dtype == pl.Boolean:
            return value
        text = value.cast(pl.String).str.to_lowercase()
        return text.replace_strict(TRUTH_VALUES, default=None, return_dtype=pl.Boolean)
    if kind == "date":
        if dtype == pl.String:
            return value.str.to_datetime(strict=False, time_unit="us")
        return (
            value
            if dtype in (pl.Date, pl.Datetime)
            else pl.lit(None, pl.Date).alias(value.meta.output_name())
        )
    if dtype == pl.String or dtype.is_numeric():
        return value.cast(pl.Float64, strict=False)
    return pl.lit(None, pl.Float64).alias(value.meta.output_name())


def _number_columns(classifier: ProportionClassifier, frame: pl.LazyFrame) -> list[pl.Series]:
    names = [column.name for column in columns_of(classifier) if column.kind == "number"]
    return frame.select(names).collect().get_columns()


# --- predictions


def predict_proba(classifier: ProportionClassifier, source: Source) -> np.ndarray:
    """Probabilities (n, k) of all rows, computed a batch at a time."""
    n_rows = int(source.frame.select(pl.len()).collect().item())
    found = empty_array((n_rows, len(classifier.classes_)), np.float64)
    row = 0
    for X in _instances(classifier, source):
        probabilities = _checked_proba(classifier, X, source.table, row)
        found[row : row + len(probabilities)] = probabilities
        row += len(probabilities)
    return found


def _checked_proba(classifier: ProportionClassifier, X: Any, table: Path, row: int) -> np.ndarray:
    """Probabilities of a batch whose first row is row `row` of the table."""
    probabilities = classifier.predict_proba(X)
    wrong = np.flatnonzero(np.isnan(probabilities).any(1))
    if len(wrong):
        what = f"{table.name}, row {row + int(wrong[0]) + 1}, has no probabilities"
        raise DataError(f"{what}; a number in it, or in the model, is too large")
    return probabilities


def _instances(classifier: ProportionClassifier, source: Source) -> Iterator[Any]:
    """Frames or images for the classifier."""
    if source.image is not None:
        return read_all_images(source.image, source.table, source.frame)
    return _batches_of(source.frame.select(column.name for column in columns_of(classifier)), source.table)


def _batches_of(frame: pl.LazyFrame, table: Path) -> Iterator[pl.DataFrame]:
    """All rows of a table, a batch at a time."""
    n_rows = int(frame.select(pl.len()).collect().item())
    for batch in read_batches(frame):
        n_rows -= batch.height
        yield batch
    if n_rows:  # polars may end early when a thread that reads a file fails
        raise DataError(f"{table.name} ends {n_rows} rows before its end; it is damaged")


def check_proportions(
    classifier: ProportionClassifier, spec: TableSpec, *, learn: bool = False
) -> CheckedTable:
    """The proportions of new bags, checked, for the classes of a classifier."""
    spec = replace(spec, missing=tuple(dict.fromkeys((*about_of(classifier).missing, *spec.missing))))
    checked = check(spec, learn=learn)
    classes = [str(name) for name in classifier.classes_]
    if checked.classes and sorted(map(str, checked.classes)) != sorted(classes):
        what = f"the proportions are of {name_list(checked.classes)}, the model knows {name_list(classes)}"
        checked.report.add_message("classes", what, "name the model's classes with --classes")
    return checked


def _bags_and_proportions(spec: TableSpec, checked: CheckedTable) -> tuple[Any, Any]:
    bags: Any = {name: checked.frame.select(name).collect().to_series() for name in spec.bag_names}
    proportions: Any = dict(checked.proportions)
    if len(spec.bags) == 1:
        (bags,) = bags.values()
        (proportions,) = proportions.values()
    return bags, proportions


# --- what new rows have that those of training did not


def note_differences(classifier: ProportionClassifier, frame: pl.LazyFrame) -> list[str]:
    """Notes on columns with missing values, categories and far numbers that training did not have."""
    columns = columns_of(classifier)
    schema = frame.collect_schema()
    queries: list[list[pl.Expr]] = [[pl.len().alias("rows")]]
    for i, column in enumerate(columns):
        value = pl.col(column.name)
        missing = value.is_null() | value.is_nan() if schema[column.name].is_float() else value.is_null()
        queries.append([missing.sum().alias(f"missing {i}")])
        if column.kind == "category":
            unseen = value.is_not_null() & ~value.is_in(column.categories)
            queries[-1].append(unseen.sum().alias(f"unseen {i}"))
            queries[-1].append(value.filter(unseen).first().alias(f"example {i}"))
        if column.kind == "number":
            far = ((value - column.mean).abs() > FAR * column.scale) & value.is_not_nan()
            queries[-1].append(far.sum().alias(f"far {i}"))
            queries[-1].append(value.filter(far).first().alias(f"example {i}"))
    found = _collect_row(frame, queries)
    rows = found["rows"]
    notes = []
    for i, column in enumerate(columns):
        missing, unseen, far = (found.get(f"{what} {i}", 0) for what in ("missing", "unseen", "far"))
        example = found.get(f"example {i}")
        if missing and not column.indicator:
            what = (
                f"column {column.name!r} is missing in {missing:,} of {rows:,} rows, but in none of training"
            )
            notes.append(f"{what}; {_replacement(column)}")
        if unseen and (unseen == rows or not column.knows_other):
            what = (
                f"column {column.name!r} has values in {unseen:,} of {rows:,} rows that training did not have"
            )
            guess = did_you_mean(example, column.categories)
            notes.append(f"{what}, such as {example!r}{guess}; {_replacement(column)}")
        if far > rows / FAR**2:
            training = f"mean {column.mean:.4g}, deviation {column.scale:.4g}"
            what = f"column {column.name!r} is far from training ({training}) in {far:,} of {rows:,} rows"
            notes.append(f"{what}, such as {example:.4g}; is its unit the same?")
    return _first(notes)


def _collect_row(frame: pl.LazyFrame, queries: Sequence[Sequence[pl.Expr]]) -> dict[str, Any]:
    """The values of queries, each about one column. Few columns at once are read: of each, polars holds some
    row groups."""
    found: dict[str, Any] = {}
    for start in range(0, len(queries), COLUMNS_AT_ONCE):
        some = [query for about in queries[start : start + COLUMNS_AT_ONCE] for query in about]
        found |= frame.select(some).collect(engine="streaming").row(0, named=True)
    return found


def _first(notes: list[str], limit: int = 10) -> list[str]:
    more = len(notes) - limit
    return [*notes[:limit], f"and {more:,} more such columns"] if more > 0 else notes


def _replacement(column: Column) -> str:
    """What a missing or unseen value counts as."""
    if column.kind == "category":
        return "they count as 'other'" if column.knows_other else "they count as the mean of its categories"
    return "they count as the " + ("more frequent value" if column.kind == "boolean" else "median")
