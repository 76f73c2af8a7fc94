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
    from apportion.errors import RunError
    from apportion.runs import all_runs, finished
    from apportion.runs.files import check_place, whole_file

    if not root.is_dir():
        raise RunError(f"{root} is not a folder; pass the folder that holds the runs, such as results")
    if md is None and html is None:
        raise typer.BadParameter("say what to write: --html report.html, --md results.md, or both")
    for path in (md, html):
        if path is not None:
            check_place(path)
    found = list(all_runs(root))
    if not any(map(finished, found)):
        remedy = "pass the folder that holds the runs, such as results, or let them finish"
        others = f" ({len(found)} are not)" if found else ""
        raise RunError(f"no run below {root} is finished{others}: {remedy}")
    if md is not None:
        from apportion.report.page import results_page

        with whole_file(md) as beside:
            beside.write_bytes(results_page(root, md).encode("utf-8", "replace"))
        print(f"{md}")
    if html is not None:
        from apportion.report.html import html_page

        with whole_file(html) as beside:
            beside.write_bytes(html_page(root, data, thumbnails).encode("utf-8", "replace"))
        print(f"{html}, {html.stat().st_size / 1e6:.2f} MB")
