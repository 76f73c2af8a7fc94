"""apportion run NAME"""

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.naming import Settings


def command(
    name: Annotated[str, typer.Argument(help="A recipe or a group of apportion list.")],
    seeds: Annotated[str, typer.Option(help="1, 1-3 or 1,2,5.")] = "1",
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    data: Annotated[Path | None, typer.Option(help="Folder of the image data sets.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    exact: Annotated[bool, typer.Option("--exact", help="Deterministic algorithms only.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on with a changed recipe, data set or version; recorded.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's event files into the run folders.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, in processes of this machine.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(help="A Dask scheduler whose workers make the runs, as tcp://host:8786.")
    ] = None,
    set_: Settings = None,
) -> None:
    import os
    from dataclasses import replace

    from apportion.cli import naming
    from apportion.cli.progress import Progress
    from apportion.cli.scalars import Scalars
    from apportion.experiment.stages import run_with_teacher
    from apportion.recipes import changed

    given = {"device": device, "data": data, "exact": exact, "force": force}
    cells = [
        (key, replace(changed(recipe, naming.settings(set_)), seed=seed))
        for seed in naming.seeds(seeds)
        for key, recipe in naming.find(name).items()
    ]
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    if jobs > 1 or scheduler is not None:
        if "RANK" in os.environ:
            raise typer.BadParameter("torchrun shares one run at a time: leave --jobs and --scheduler out")
        from apportion.cli.together import run_together

        run_together(cells, out, jobs, scheduler, tensorboard, given)
        return
    for key, recipe in cells:
        with Progress() as progress, Scalars(tensorboard and first) as scalars:
            for folder, of, line in run_with_teacher(recipe, out, key, **given):
                if first:
                    progress.show_epoch(str(folder.relative_to(out)), of, line)
                scalars.show(folder, line)
