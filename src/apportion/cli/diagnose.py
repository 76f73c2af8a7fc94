"""apportion diagnose MODEL TABLE"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import tabling

NO_ANSWER = 1


def command(
    model: Annotated[Path, typer.Argument(help="A folder that `apportion fit` wrote.")],
    table: tabling.Table,
    bag: tabling.Bag,
    proportions: tabling.Proportions = None,
    counts: tabling.Counts = None,
    shares: tabling.Shares = "",
    key: tabling.Key = None,
    classes: tabling.Classes = "",
    drop: tabling.Drop = "",
    categorical: tabling.Categorical = "",
    missing: tabling.Missing = None,
    normalize: tabling.Normalize = False,
    noise: tabling.Noise = None,
    unlabeled: tabling.Unlabeled = False,
    fill: tabling.Fill = False,
    new: Annotated[bool, typer.Option("--new", help="The model has learned from no bag of TABLE.")] = False,
    folds: Annotated[int, typer.Option(min=2, help="Networks to train, if no bag was held out.")] = 4,
    bags_out: Annotated[Path | None, typer.Option(metavar="FILE", help="The error of every bag.")] = None,
    rows_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Each row's class and margin.")
    ] = None,
    device: tabling.Device = "auto",
) -> None:
    from apportion._device import find_device
    from apportion._untrusted import check_writable_place
    from apportion.errors import DataError
    from apportion.models import load_model
    from apportion.tables.checking import check, refuse
    from apportion.tables.reading import check_ending, pl, save_table
    from apportion.tabular.believing import mended
    from apportion.tabular.diagnose import bags_for, judged
    from apportion.tabular.diagnosed import by_bag, by_row, report
    from apportion.tabular.told import asked_for

    for path in (path for path in (bags_out, rows_out) if path is not None):
        check_ending(path)
        check_writable_place(path, error=DataError)
    tabling.check_apart([bags_out, rows_out], [table, *(proportions or ()), *(counts or ())])
    find_device(device)
    loaded = load_model(model)
    asked = tabling.asked(
        table, bag, proportions, counts, shares, key, classes, drop, categorical, missing, normalize,
        noise, unlabeled, fill,
    )  # fmt: skip
    asked = asked_for(loaded, tabling.about_one(asked, "diagnose"))
    found = check(asked)
    refuse(found)
    bags, relax = mended(bags_for(loaded, [asked], [found])[0], asked)
    diagnosis, bags, which = judged(
        loaded, bags, folds=folds, new=new, device=device, relax=relax, verbose=True
    )
    for line in report(diagnosis, which):
        print(line)
    if bags_out is not None:
        save_table(pl.LazyFrame(by_bag(diagnosis, bags)), bags_out)
    if rows_out is not None:
        save_table(pl.LazyFrame(by_row(diagnosis, bags, loaded)), rows_out)
    if not diagnosis.supported:
        raise typer.Exit(NO_ANSWER)
