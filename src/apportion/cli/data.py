"""apportion data: fetch published data sets, import packs, list what is at hand."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Fetch, import and list data sets.", no_args_is_help=True)

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
    from apportion.data.images import default_folder

    for name in names:
        typer.echo(f"{name} is in {_with_progress(name, data or default_folder())}")


def _with_progress(name: str, folder: Path) -> Path:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from apportion.data.fetch import fetch as fetch_set

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns) as progress:
        tasks = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done)

        return fetch_set(name, folder, report)


@app.command("import")
def import_(
    packs: Annotated[
        Path, typer.Argument(metavar="PACK_DIR", help="Folder with the packs and their manifests.")
    ],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="All packs if none.")] = None,
    data: Folder = None,
) -> None:
    """Unpack packs of data sets into plain arrays, with their checksums checked."""
    from apportion.data.images import default_folder
    from apportion.data.shelf import import_named, packed

    for name in names or packed(packs):
        typer.echo(f"{name} is in {import_named(name, packs, data or default_folder())}")


@app.command("list")
def list_(data: Folder = None) -> None:
    """Say which data sets are at hand, and where."""
    from apportion.data.images import default_folder
    from apportion.data.shelf import at_hand

    for name, place in at_hand(data or default_folder()).items():
        typer.echo(f"{name:14} {place or f'not here; `apportion data fetch {name}`'}")
