"""apportion report ROOT"""

from pathlib import Path
from typing import Annotated

import typer


def command(
    root: Annotated[Path, typer.Argument(help="Where the run folders are.")],
    md: Annotated[Path, typer.Option(help="The page to write; its figures go to images/ beside it.")],
) -> None:
    from apportion.report.page import results_page
    from apportion.runs import RunError, write

    if not root.is_dir():
        raise RunError(f"{root} is not a folder; pass the folder that holds the runs, such as results")
    md.parent.mkdir(parents=True, exist_ok=True)
    write(md, results_page(root, md))
    print(f"{md}")
