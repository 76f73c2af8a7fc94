"""apportion report ROOT"""

from pathlib import Path
from typing import Annotated

import typer


def command(
    root: Annotated[Path, typer.Argument(help="Where the run folders are.")],
    md: Annotated[
        Path | None, typer.Option(help="A page of tables; its figures go to images/ beside it.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="One self-contained page with charts and bags.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the image data sets, for thumbnails.")] = None,
    thumbnails: Annotated[bool, typer.Option(help="Draw images where their data set is at hand.")] = True,
) -> None:
    from apportion.runs import RunError, write

    if not root.is_dir():
        raise RunError(f"{root} is not a folder; pass the folder that holds the runs, such as results")
    if md is None and html is None:
        raise typer.BadParameter("say what to write: --html report.html, --md results.md, or both")
    for path in (md, html):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    if md is not None:
        from apportion.report.page import results_page

        write(md, results_page(root, md))
        print(f"{md}")
    if html is not None:
        from apportion.report.html import html_page

        write(html, html_page(root, data, thumbnails))
        print(f"{html}, {html.stat().st_size / 1e6:.2f} MB")
