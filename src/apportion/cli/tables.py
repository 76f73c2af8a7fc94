"""Commands about tables: check, fit, predict, diagnose, tabulate and export."""

import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.exit_codes import NO_ANSWER
from apportion.cli.options import (
    Device,
    FeatureOptions,
    Missing,
    Model,
    ProportionOptions,
    Table,
    TrainingOptions,
    Weight,
    check_separate,
    make_spec,
    with_options,
)

MAX_COLUMNS = 40  # that are listed


def show(text: Any) -> None:
    """Print a text that may hold names from files: no control characters reach the terminal."""
    from apportion._untrusted import printable_lines

    print(printable_lines(text), flush=True)


@with_options
def check(
    table: Table, proportions: ProportionOptions, features: FeatureOptions, missing: Missing = None
) -> None:
    """Find everything that is wrong with a table and the proportions of its bags, all at once."""
    from apportion.tables.check import check as check_table
    from apportion.tables.images import read_all_images

    spec = make_spec(table, proportions, features, missing)
    checked = check_table(spec)
    for note in checked.report.notes:
        show(note)
    checked.report.raise_problems()
    if checked.image is not None:
        for _ in read_all_images(checked.image, table, checked.frame):
            pass  # files that cannot be read are errors
    kinds = checked.report.kinds
    columns = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    if len(kinds) > MAX_COLUMNS:
        columns = ", ".join(f"{n:,} columns ({kind})" for kind, n in Counter(kinds.values()).items())
    if checked.image is not None:
        columns = f"{checked.image.name} (image)"
    show(f"no problems: {columns} -> {', '.join(map(str, checked.classes))}")


@with_options
def fit(
    table: Table,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the model: new, or empty.")],
    proportions: ProportionOptions,
    features: FeatureOptions,
    training: TrainingOptions,
    missing: Missing = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder in which an interrupted fit is kept. The same command continues it.",
        ),
    ] = None,
) -> None:
    """Learn a classifier of rows from a table and the proportions of its bags."""
    from apportion._device import find_device
    from apportion._writing import check_writable_place
    from apportion.cli.progress import Progress
    from apportion.errors import ApportionWarning, ModelError, SettingsError

    if not is_saved_by(checkpoint, out):
        check_writable_place(out, folder=True, error=ModelError)
    if checkpoint is not None:
        check_separate([checkpoint], [out, table])
        if out.resolve() in checkpoint.resolve().parents or checkpoint.resolve() in out.resolve().parents:
            raise SettingsError(f"{checkpoint} and {out} lie in each other; name folders beside each other")
    spec = make_spec(table, proportions, features, missing)
    if not training.horizontal_flip and spec.image is None:
        raise SettingsError("--no-horizontal-flip is for images; name the column of their files with --image")
    find_device(training.device)

    from apportion.tables.check import check as check_table

    checked = check_table(spec)
    for note in checked.report.notes:
        show(note)
    checked.report.raise_problems()
    warnings.filterwarnings("ignore", r"(counts|shares|percentages) cover", ApportionWarning)  # was a note

    from apportion.checkpoints import open_checkpoint
    from apportion.estimator import ProportionClassifier
    from apportion.saving import describe_quality, has_model, save_nearby
    from apportion.tables.fit import describe_fit
    from apportion.tables.fit import fit as fit_table

    classifier = ProportionClassifier(**training.parameters())
    with nullcontext() if checkpoint is None else open_checkpoint(checkpoint) as kept:
        if kept is not None and kept.saved is not None:
            show(f"continues from {checkpoint}")
        with Progress() as progress:
            for state in fit_table(classifier, spec, checked, kept):
                losses = ", ".join(f"{name} {value:.4g}" for name, value in state.epoch.terms.items())
                progress.update(f"{state.stage} stage", state.epoch.number, state.epoch.total, losses)
        if is_saved_by(checkpoint, out) and has_model(out, classifier):
            place = out.absolute()
        else:
            if kept is not None:
                kept.note_place(out)
            place = save_nearby(classifier, out, about=describe_fit(spec, checked, classifier))
        if kept is not None:
            kept.remove()  # not before the model is saved
    for name, value in describe_quality(classifier).items():
        show(f"{name}: {_format(value)}")
    show(out if place == out.absolute() else place)


def is_saved_by(checkpoint: Path | None, out: Path) -> bool:
    """Whether `out` has a model that the fit of this checkpoint may have saved before it was killed."""
    if checkpoint is None or not (out / "model.json").is_file() or out.is_symlink():
        return False
    from apportion.checkpoints import noted_place

    return noted_place(checkpoint) == out.absolute()


def _format(value: Any) -> str:
    if value is None:
        return "undefined (too few bags, or all alike)"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@with_options
def predict(
    model: Model,
    table: Table,
    out: Annotated[Path, typer.Option(metavar="FILE", help="TABLE with predictions: CSV, Parquet or Excel.")],
    proportions: ProportionOptions,
    missing: Missing = None,
    decide: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="argmax: the most probable class. shares: classes in their known shares; with --bag, in the "
            "counts of every bag.",
        ),
    ] = "argmax",
    device: Device = "auto",
) -> None:
    """Add predicted classes and probabilities to a table; with --bag, given the proportions of its bags."""
    from apportion._device import find_device
    from apportion._writing import check_writable_place
    from apportion.errors import DataError, SettingsError
    from apportion.tables.read import check_output_suffix, write_table

    check_output_suffix(out)
    check_writable_place(out, error=DataError)
    check_separate([out], [table, *(proportions.proportions or ()), *(proportions.counts or ())])
    find_device(device)
    if decide not in ("argmax", "shares"):
        raise SettingsError(f"--decide is {decide!r}; pass argmax or shares")
    spec = spec_of_bags(table, proportions, missing)

    from apportion.saving import load
    from apportion.tables.predict import predict_table

    classifier = load(model).set_params(device=device)
    typed = out.suffix.lower() != ".csv"
    predicted, notes = predict_table(
        classifier, table, missing=missing or (), spec=spec, typed=typed, decide=decide
    )
    write_table(predicted, out)
    for note in notes:
        show(note)
    show(out)


@with_options
def diagnose(
    model: Model,
    table: Table,
    proportions: ProportionOptions,
    weight: Weight = None,
    missing: Missing = None,
    new: Annotated[
        bool, typer.Option("--new", help="The model has not learned from the bags of TABLE.")
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Models to train if no bags were held out. [default: 4; 2 above 1,000,000 rows]",
        ),
    ] = None,
    bags_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the error of every bag.")
    ] = None,
    rows_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the class and the margin of every row.")
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Also print how certain predictions and labels of rows are."),
    ] = False,
    device: Device = "auto",
) -> None:
    """Say how good a model is, without labels of rows: by bags that it has not learned from.

    Exit code 1: these bags do not show that it works.
    """
    from apportion._device import find_device
    from apportion._writing import check_writable_place
    from apportion.errors import DataError, SettingsError
    from apportion.tables.read import check_output_suffix, write_table

    outputs = [path for path in (bags_out, rows_out) if path is not None]
    for path in outputs:
        check_output_suffix(path)
        check_writable_place(path, error=DataError)
    inputs = [table, *(proportions.proportions or ()), *(proportions.counts or ())]
    check_separate([bags_out, rows_out], inputs)
    find_device(device)
    spec = make_spec(table, proportions, missing=missing, weight=weight)
    if len(spec.bags) > 1:
        raise SettingsError("diagnose takes one --bag at a time; judge each grouping by itself")

    import numpy as np

    from apportion.cli.progress import Progress
    from apportion.saving import load
    from apportion.tables.diagnose import (  # fmt: skip
        bag_table,
        describe_diagnosis,
        diagnose_probabilities,
        judged_device,
        plan_diagnosis,
        predict_bags,
        row_table,
    )

    classifier = load(model)
    classifier.set_params(device=judged_device(classifier, device))
    evaluation = plan_diagnosis(classifier, spec, new=new, folds=folds)
    probabilities = np.empty((len(evaluation.bags.source), len(classifier.classes_)))
    with Progress() as progress:
        for fold, state in predict_bags(classifier, evaluation, probabilities):
            task = f"model {fold + 1} of {evaluation.folds}"
            progress.update_part(task, f"{state.stage} stage", state.epoch.number, state.epoch.total)
    diagnosis = diagnose_probabilities(classifier, probabilities, evaluation)
    for line in describe_diagnosis(diagnosis, evaluation.judged_on, verbose=verbose):
        show(line)
    if bags_out is not None:
        write_table(bag_table(diagnosis, evaluation).lazy(), bags_out)
    if rows_out is not None:
        write_table(row_table(diagnosis, evaluation, classifier).lazy(), rows_out)
    if not diagnosis.supported:
        raise typer.Exit(NO_ANSWER)


@with_options
def tabulate(
    model: Model,
    table: Table,
    by: Annotated[
        list[str],
        typer.Option(metavar="COLUMN", help="Column of the groups; repeatable, for their combinations."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Table of counts, CSV, Parquet or Excel.")],
    proportions: ProportionOptions,
    weight: Weight = None,
    missing: Missing = None,
    level: Annotated[float, typer.Option(help="Probability that an interval is meant to hold.")] = 0.9,
    replicates: Annotated[
        int, typer.Option(min=0, help="Models to fit to halves of the bags for intervals; 0: none.")
    ] = 10,
    device: Device = "auto",
) -> None:
    """Count classes by group: predicted counts and shares, with bounds; with --bag, also intervals."""
    from apportion._device import find_device
    from apportion._writing import check_writable_place
    from apportion.errors import DataError
    from apportion.tables.read import check_output_suffix, write_table
    from apportion.tabulation import check_level

    check_output_suffix(out)
    check_writable_place(out, error=DataError)
    check_separate([out], [table, *(proportions.proportions or ()), *(proportions.counts or ())])
    find_device(device)
    check_level(level, replicates)
    spec = spec_of_bags(table, proportions, missing, weight)

    from apportion.cli.progress import Progress
    from apportion.saving import load
    from apportion.tables.tabulate import Tabulation

    classifier = load(model)
    classifier.set_params(device="cpu" if device == "auto" and classifier.device_ == "cpu" else device)
    tabulation = Tabulation(classifier, table, [by], spec=spec, missing=missing or (), weight=weight)
    with Progress() as progress:
        for replicate, state in tabulation.replicate(replicates):
            task = f"model {replicate + 1} of {replicates} for intervals"
            progress.update_part(task, f"{state.stage} stage", state.epoch.number, state.epoch.total)
    (counts,) = tabulation.frames(level)
    write_table(counts.lazy(), out)
    show(out)


def spec_of_bags(
    table: Path, proportions: ProportionOptions, missing: list[str] | None, weight: str | None = None
) -> Any:
    """What the options say about bags; None without --bag."""
    from apportion.errors import SettingsError

    if proportions.bag:
        return make_spec(table, proportions, missing=missing, weight=weight)
    if proportions != ProportionOptions():
        raise SettingsError("proportions belong to bags; name the column with the bag of each row with --bag")
    return None


def export(
    model: Model,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", metavar="FILE", help="The ONNX file to write.")
    ] = None,
) -> None:
    """Write a model as one ONNX file, for programs without torch."""
    from apportion._writing import check_writable_place
    from apportion.errors import ModelError

    path = onnx or model / "model.onnx"
    check_writable_place(path, error=ModelError)
    check_separate([path], [file for file in model.glob("*") if file.suffix != ".onnx"])

    from apportion.saving import export_onnx, load

    export_onnx(load(model), path)
    show(path)
