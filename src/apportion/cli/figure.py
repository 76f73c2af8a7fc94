"""apportion figure KIND ROOT"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    curves = "curves"
    labels = "labels"
    soft = "soft"
    confusion = "confusion"


def command(
    kind: Annotated[
        Kind, typer.Argument(help="curves; labels (figure 3); soft (figure 4); confusion of one cell.")
    ],
    root: Annotated[Path, typer.Argument(help="Where the run folders are.")],
    out: Annotated[Path, typer.Option(help="The file to write: .png, .svg or .pdf.")],
    cell: Annotated[
        list[str] | None,
        typer.Option(help="A recipe such as digits/dllp/16, or a group; may be repeated; all by default."),
    ] = None,
    quantity: Annotated[str, typer.Option(help="Of curves: any quantity of the log.")] = "test_accuracy",
) -> None:
    import matplotlib

    from apportion.errors import RunError
    from apportion.report.collect import collect
    from apportion.report.curves import STYLE, check_ending, confusion_figure, curves_figure, save_as
    from apportion.report.figures import figure_3, figure_4
    from apportion.runs.files import check_place

    check_ending(out)
    check_place(out)
    wanted = cell or [""]
    cells = {
        name: found
        for name, found in collect(root).items()
        if any(name == one or not one or name.startswith(f"{one}/") for one in wanted)
    }
    if not cells:
        which = f" of {', '.join(cell)}" if cell else ""
        raise RunError(f"no finished run{which} below {root}; see apportion list")
    first = next(iter(cells))
    with matplotlib.rc_context(STYLE):
        made = {
            Kind.curves: lambda: curves_figure(cells, quantity),
            Kind.labels: lambda: figure_3(cells, next((n for n in cells if "+plot" in n), first)),
            Kind.soft: lambda: figure_4(cells),
            Kind.confusion: lambda: confusion_figure(cells[first]),
        }[kind]()
        if made is None:
            raise RunError(f"the runs of this figure are not below {root}; see apportion list figure4")
        save_as(made, out)
    print(f"{out}")
