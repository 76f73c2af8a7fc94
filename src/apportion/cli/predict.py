"""apportion predict MODEL TABLE"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import tabling


def command(
    model: Annotated[Path, typer.Argument(help="A folder that `apportion fit` wrote.")],
    table: tabling.Table,
    out: Annotated[Path, typer.Option(metavar="FILE", help="TABLE with its predictions, CSV or Parquet.")],
    bag: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Each row's bag, if predictions shall meet its shares."),
    ] = None,
    proportions: tabling.Proportions = None,
    counts: tabling.Counts = None,
    shares: tabling.Shares = "",
    key: tabling.Key = None,
    classes: tabling.Classes = "",
    missing: tabling.Missing = None,
    normalize: tabling.Normalize = False,
    noise: tabling.Noise = None,
    unlabeled: tabling.Unlabeled = False,
    fill: tabling.Fill = False,
    device: tabling.Device = "auto",
) -> None:
    from apportion._device import find_device
    from apportion._untrusted import check_writable_place
    from apportion.errors import DataError
    from apportion.models import load_model
    from apportion.tables.reading import check_ending, save_table
    from apportion.tabular.known import given_shares
    from apportion.tabular.score import score_table

    typed = check_ending(out) != ".csv"
    check_writable_place(out, error=DataError)
    find_device(device)
    tabling.check_apart([out], [table, *(proportions or ()), *(counts or ())])
    loaded, known, notes = load_model(model), None, list[str]()
    if bag:
        asked = tabling.asked(
            table, bag, proportions, counts, shares, key, classes, "", "", missing, normalize, noise,
            unlabeled, fill,
        )  # fmt: skip
        known = given_shares(loaded, asked, notes, device)
    elif any((proportions, counts, shares, key, classes, noise, normalize, unlabeled, fill)):
        raise typer.BadParameter("shares are those of bags: name the column of each row's bag with --bag")
    scored = score_table(
        loaded, table, tuple(missing or ()), typed=typed, notes=notes, shares=known, device=device
    )
    save_table(scored, out)
    for note in notes:
        print(note)
    print(f"{out}")
