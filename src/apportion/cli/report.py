"""The command report: a page about a saved model, or about the runs below a folder."""

from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli.experiments import DataFolder, Imports
from apportion.cli.options import (
    Device,
    Missing,
    ProportionOptions,
    Weight,
    check_separate,
    option,
    split_names,
    with_options,
)

MODEL, RUNS = "Models", "Runs"  # panels of --help


@with_options
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A model of `apportion fit`, or a folder with runs.")
    ],
    proportions: ProportionOptions,
    table: Annotated[
        Path | None,
        typer.Argument(
            metavar="TABLE", help="For a model: its table, or one of new bags. What it shows is added."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page to this file.")
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            panel=MODEL,
            metavar="COLUMN",
            text="Add a table by this column; A,B: by their combinations. Pass it again for another table.",
        ),
    ] = None,
    new: Annotated[
        bool, option("--new", panel=MODEL, text="The model has not learned from the bags of TABLE.")
    ] = False,
    quick: Annotated[
        bool,
        option(
            "--quick",
            panel=MODEL,
            text="Train nothing: only held-out or new bags judge the model, and there are no intervals.",
        ),
    ] = False,
    folds: Annotated[
        int | None,
        option(panel=MODEL, min=2, text="Models to train if no bags were held out, as in diagnose."),
    ] = None,
    level: Annotated[float, option(panel=MODEL, text="Probability that an interval is meant to hold.")] = 0.9,
    replicates: Annotated[
        int, option(panel=MODEL, min=0, text="Models to fit to halves of the bags for intervals.")
    ] = 10,
    weight: Weight = None,
    missing: Missing = None,
    device: Device = "auto",
    md: Annotated[
        Path | None, option(panel=RUNS, metavar="FILE", text="Write tables in Markdown to this file.")
    ] = None,
    data: DataFolder = None,
    thumbnails: Annotated[bool, option(panel=RUNS, text="Draw images if their data set is found.")] = True,
    imports: Imports = None,
) -> None:
    """Write a page about a model: what it predicts, what can be known about it, tables by group.

    With a TABLE and its --bag and --proportions, the page adds the diagnosis, every bag, calibration and the
    columns that matter. For a folder with runs, the page has their results; --md writes tables in Markdown.
    """
    from apportion._untrusted import printable
    from apportion.errors import RunError, SettingsError

    if not folder.is_dir():
        raise RunError(
            f"{printable(folder)} is not a folder; pass a model, or the folder that holds the runs"
        )
    about_tables = table is not None or by or new or quick or folds is not None or missing or weight
    about_tables = about_tables or proportions != ProportionOptions()
    if not (folder / "model.json").exists():
        if about_tables:
            what = f"{printable(folder)} holds no model: it has no model.json"
            raise SettingsError(f"{what}; a TABLE and its options are for models")
        report_runs(folder, md, html, data, thumbnails, imports or [])
        return
    if html is None or md is not None:
        raise typer.BadParameter("the report of a model is a page; pass --html page.html, and no --md")
    if about_tables and table is None:
        raise SettingsError(
            "--bag, --by, --new, --quick, --folds, --weight and --missing are about a table; name it after"
            " the model"
        )
    settings = {"new": new, "folds": folds, "train": not quick, "level": level, "replicates": replicates}
    report_model(folder, html, table, proportions, by or [], missing, weight, device, settings)


def report_model(
    folder: Path,
    html: Path,
    table: Path | None,
    proportions: ProportionOptions,
    by: list[str],
    missing: list[str] | None,
    weight: str | None,
    device: str,
    settings: dict[str, Any],
) -> None:
    """The page of a model, with the evidence of a table if there is one."""
    from apportion._device import find_device
    from apportion._writing import atomic_write, check_writable_place
    from apportion.cli.tables import show, spec_of_bags
    from apportion.errors import ModelError
    from apportion.tabulation import check_level

    check_writable_place(html, error=ModelError)
    inputs = [*(proportions.proportions or ()), *(proportions.counts or ())]
    check_separate([html], [*folder.glob("*"), *inputs, *([] if table is None else [table])])
    find_device(device)
    check_level(settings["level"], settings["replicates"])
    spec = None
    if table is not None:
        spec = spec_of_bags(table, proportions, missing, weight)

    from apportion.cli.progress import Progress
    from apportion.report.model_evidence import ModelEvidence
    from apportion.report.model_page import model_page
    from apportion.saving import load
    from apportion.tables.diagnose import judged_device

    classifier = load(folder)
    classifier.set_params(device=judged_device(classifier, device))
    evidence = None
    if table is not None:
        columns = [split_names(text) for text in by]
        evidence = ModelEvidence(
            classifier, table, spec, by=columns, missing=missing or (), weight=weight, **settings
        )
        with Progress("step") as progress:
            for step in evidence.collect():
                progress.update_part(step.task, step.part, step.done, step.total)
    page = model_page(folder, classifier, evidence).encode("utf-8", "replace")
    atomic_write(html, page, error=ModelError)
    show(f"{html}, {len(page) / 1e6:.2f} MB")


def report_runs(
    root: Path, md: Path | None, html: Path | None, data: Path | None, thumbnails: bool, imports: list[str]
) -> None:
    """Markdown tables of the runs below a folder, an HTML page, or both."""
    from apportion._untrusted import printable
    from apportion._writing import atomic_write, check_writable_place
    from apportion.errors import RunError
    from apportion.experiments.extensions import import_modules
    from apportion.experiments.run_folder import all_runs, is_finished
    from apportion.report.tables import collect, modules_not_imported

    import_modules(imports)
    if md is None and html is None:
        raise typer.BadParameter("pass what to write: --html report.html, --md report.md, or both")
    for path in (md, html):
        if path is not None:
            check_writable_place(path, error=RunError)
    folders = all_runs(root)
    if not any(is_finished(folder) for folder in folders):
        unfinished = f" ({len(folders)} are unfinished)" if folders else ""
        raise RunError(
            f"there is no finished run below {printable(root)}{unfinished}, and no model; pass the folder of "
            "a model, or one that holds runs"
        )
    if md is not None:
        from apportion.report.tables import runs_page

        atomic_write(md, runs_page(root).encode("utf-8", "replace"), error=RunError)
        print(printable(md))
    if html is not None:
        from apportion.report.page import html_page

        page = html_page(root, data, thumbnails).encode("utf-8", "replace")
        atomic_write(html, page, error=RunError)
        print(f"{printable(html)}, {len(page) / 1e6:.2f} MB")
    modules = modules_not_imported(collect(root))
    if modules:
        options = " ".join(f"--import {module}" for module in modules)
        print(f"pass {options} for the titles of methods and the pictures of data")
