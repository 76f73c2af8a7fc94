"""apportion watch ROOT"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

ROWS = 30  # of runs; the others are counted
WIDE = 1_000  # columns of what is no terminal: nothing is broken into lines


def command(
    root: Annotated[Path, typer.Argument(help="Where the run folders are.")] = Path("runs"),
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once; so does what is no terminal.")] = False,
) -> None:
    import os
    import time
    from contextlib import suppress

    from rich.console import Console
    from rich.live import Live

    from apportion.cli.stopping import Stopped
    from apportion.errors import RunError
    from apportion.report.live import statuses

    if not root.is_dir():
        raise RunError(f"{root} is not a folder; pass the folder that holds the runs, such as runs")
    console = Console()
    if once or not console.is_terminal:
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = WIDE
        console.print(shown(statuses(root)))
        return
    # Ctrl-C ends the looking, and is no error
    with suppress(Stopped), Live(shown(statuses(root)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every)
            live.update(shown(statuses(root)), refresh=True)


def shown(found: list) -> "Table":
    """A row a run: how far, its figures now, and the time left."""
    from rich.table import Table
    from rich.text import Text

    done = sum(each.state == "finished" for each in found)
    table = Table(caption=f"{done} of {len(found)} runs finished", expand=False)
    for head in ("run", "state", "epoch", "test %", "proportion error %", "terms", "left"):
        side = "left" if head in ("run", "state", "terms") else "right"
        table.add_column(head, justify=side, overflow="fold")  # a name that is cut off is nobody's
    for each in found[:ROWS]:
        line = each.line or {}
        terms = ", ".join(f"{name} {value:.4g}" for name, value in line.get("terms", {}).items())
        cells = [each.name, each.state, f"{each.epoch}/{each.epochs}", number(line.get("test_accuracy"))]
        cells += [number(line.get("proportion_error")), terms, clock(each.left)]
        # Text: a folder's name is no markup; nor does a name of a stranger's steer the terminal
        table.add_row(*(Text("".join(c if c.isprintable() else "?" for c in cell)) for cell in cells))
    if len(found) > ROWS:
        table.add_row(f"… and {len(found) - ROWS} more")
    return table


def number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) and abs(value) < 1e6 else "–"


def clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
