"""apportion demo"""

from pathlib import Path
from typing import Annotated

import typer


def command(
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of points, bags and networks.")] = 1,
) -> None:
    """Two moons: DLLP and LLP-GAN, alone and with PLOT after them; then the same stopped early."""
    import tempfile
    from dataclasses import replace

    import torch

    from apportion.cli.progress import Progress
    from apportion.experiment.stages import run_with_teacher
    from apportion.grid import FIGURE_2, FIGURE_2_EARLY
    from apportion.report.figures import save
    from apportion.report.moons import moons_figure, moons_table
    from apportion.runs.files import writing

    torch.set_num_threads(1)  # networks this small are slower on two threads
    with writing(out, "or name another place"):
        out.mkdir(parents=True, exist_ok=True)
    print("40 bags of 50 points. Known of a bag: the share of either moon. No point's own label is used.\n")
    with tempfile.TemporaryDirectory() as folder:
        for grid, title in (
            (FIGURE_2, "150 epochs"),
            (FIGURE_2_EARLY, "first stage stopped after 40 epochs"),
        ):
            folders = []
            with Progress() as progress:
                for name, recipe in grid.items():
                    recipe = replace(recipe, seed=seed)
                    for where, epochs, line in run_with_teacher(recipe, Path(folder), name, device="cpu"):
                        progress.show_epoch(str(where.relative_to(folder).parent), epochs, line)
                    folders.append(Path(folder) / name / f"seed={seed}")
            print(f"\n{title}\n{moons_table(folders)}")
            paths = save(moons_figure(folders, title), out / next(iter(grid)).split("/")[0])
            print("figure: " + ", ".join(str(path) for path in paths) + "\n")
