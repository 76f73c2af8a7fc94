"""apportion predict MODEL TABLE"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import tabling


def command(
    model: Annotated[Path, typer.Argument(help="A folder that `apportion fit` wrote.")],
    table: tabling.Table,
    out: Annotated[Path, typer.Option(metavar="FILE", help="TABLE with its predictions, CSV or Parquet.")],
    missing: tabling.Missing = None,
) -> None:
    from apportion.models import load_model
    from apportion.runs.files import check_place
    from apportion.tables.reading import check_ending, save_table
    from apportion.tabular.score import score_table

    typed = check_ending(out) != ".csv"
    check_place(out)
    tabling.check_apart([out], [table])
    notes: list[str] = []
    scored = score_table(load_model(model), table, tuple(missing or ()), typed=typed, notes=notes)
    save_table(scored, out)
    for note in notes:
        print(note)
    print(f"{out}")
