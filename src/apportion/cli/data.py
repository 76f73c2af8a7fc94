"""apportion data: download published data sets, and list what is there."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Download and list data sets.", no_args_is_help=True)

Folder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of data sets; by default $APPORTION_DATA or a cache."),
]


@app.command()
def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="cifar10, mnist, …; see `data list`.")
    ],
    data: Folder = None,
) -> None:
    """Download data sets from where they are published, with their checksums checked."""
    from apportion.datasets import default_folder

    for name in names:
        typer.echo(f"{name} is in {_with_progress(name, data or default_folder())}")


def _with_progress(name: str, folder: Path) -> Path:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from apportion.datasets import fetch_dataset

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns) as progress:
        tasks = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done)

        return fetch_dataset(name, folder, report)


@app.command("list")
def list_(data: Folder = None) -> None:
    """Say which data sets are in the folder, and where."""
    from apportion.datasets import DOWNLOADS, default_folder, find_dataset

    for name in DOWNLOADS:
        place = find_dataset(name, data or default_folder())
        typer.echo(f"{name:14} {place or f'not here; run `apportion data fetch {name}`'}")
