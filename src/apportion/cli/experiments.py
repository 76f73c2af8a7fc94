"""Commands for experiments: run, list, show, figure, demo and data. cli/app.py registers them."""

import json
import os
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from apportion.experiments.recipe import Recipe

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SETTING=VALUE", help="Change a setting, such as second.mixup=0.4; repeatable."
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of data sets; default: $APPORTION_DATA or a cache."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="A module that registers methods, networks or data sets; it is executed. Repeatable.",
    ),
]
RunFolders = Annotated[Path, typer.Argument(metavar="ROOT", help="Folder with the run folders.")]


# --- recipes by name


def find_recipes(name: str) -> "dict[str, Recipe]":
    """The recipe of that name, all recipes of that group, or those of that file."""
    from apportion._untrusted import printable
    from apportion.experiments.recipes import RECIPES

    if name in RECIPES:
        return {name: RECIPES[name]}
    if name.endswith(".json"):
        from apportion.experiments.extensions import read_recipes

        return read_recipes(Path(name))
    group = {known: recipe for known, recipe in RECIPES.items() if known.startswith(f"{name}/")}
    if not group:
        groups = ", ".join(sorted({known.split("/")[0] for known in RECIPES}))
        raise typer.BadParameter(
            f"there is no recipe or group '{printable(name)}'; choose one of the groups {groups}, one of "
            "`apportion list`, or a file such as recipe.json"
        )
    return group


def change_recipes(name: str, settings: dict[str, str]) -> "dict[str, Recipe]":
    """The recipes of `find_recipes` with changed settings.

    A recipe that is named after its file, its method and its bag size is named after those that it has now.
    """
    from apportion.experiments.extensions import check_name, default_name
    from apportion.experiments.recipe import change_recipe

    changed = {}
    for key, recipe in find_recipes(name).items():
        new = change_recipe(recipe, settings, key)
        is_default = name.endswith(".json") and key == default_name(Path(name), recipe)
        changed[check_name(default_name(Path(name), new)) if is_default else key] = new
    return changed


def parse_settings(texts: list[str] | None) -> dict[str, str]:
    from apportion._untrusted import printable

    settings = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"'{printable(text)}' is not of the form SETTING=VALUE")
        settings[name] = value
    return settings


def parse_seeds(text: str) -> list[int]:
    """1, 1-3 or 1,2,5."""
    from apportion._untrusted import printable

    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    except ValueError:
        seeds = []
    if not seeds:
        raise typer.BadParameter(f"'{printable(text)}' is not a list of seeds; pass 1, 1-3 or 1,2,5")
    return seeds


def list_recipes(
    group: Annotated[str, typer.Argument(help="A group or a recipe; default: all.")] = "",
) -> None:
    """List the recipes and what each of them trains."""
    from apportion.experiments.recipes import RECIPES

    recipes = find_recipes(group.rstrip("/")) if group else RECIPES
    for name, recipe in recipes.items():
        text = f"{recipe.data.name}, bags of {recipe.data.bag_size}: "
        text += f"{recipe.first.method} for {recipe.first.epochs} epochs"
        if recipe.second is not None:
            text += f", then {recipe.second.labels} labels for {recipe.second.epochs}"
        print(f"{name:34} {text}")


def show(
    name: Annotated[
        str, typer.Argument(help="A recipe, or a group: then an object with one recipe per name.")
    ],
    set_: Settings = None,
    imports: Imports = None,
) -> None:
    """Print a recipe with all its settings as JSON.

    With --import, names and options of your own are checked, too.
    """
    from apportion.experiments.extensions import import_modules
    from apportion.experiments.recipe import check_recipe, to_json

    import_modules(imports or ())
    found = change_recipes(name, parse_settings(set_))
    if imports:
        for recipe in found.values():
            check_recipe(recipe)
    recipes = {key: to_json(recipe) for key, recipe in found.items()}
    if list(recipes) == [name]:
        print(recipes[name])
    else:
        print(json.dumps({key: json.loads(recipe) for key, recipe in recipes.items()}, indent=1))


# --- running


def run(
    name: Annotated[
        str, typer.Argument(help="A recipe or a group of `apportion list`, or a file of `apportion show`.")
    ],
    seeds: Annotated[str, typer.Option(help="1, 1-3 or 1,2,5.")] = "1",
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    data: DataFolder = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    exact: Annotated[bool, typer.Option("--exact", help="Use deterministic algorithms only.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Resume with a changed recipe, data set or version; it is recorded."),
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard event files into the run folders.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, in processes of this machine.")] = 1,
    scheduler: Annotated[
        str | None, typer.Option(help="A Dask scheduler whose workers make the runs: tcp://host:8786.")
    ] = None,
    set_: Settings = None,
    imports: Imports = None,
    run_name: Annotated[
        str | None,
        typer.Option("--name", metavar="GROUP/METHOD/SIZE", help="Name of the run folders of one recipe."),
    ] = None,
) -> None:
    """Run recipes. Finished runs are skipped, interrupted ones resume."""
    from dataclasses import replace

    from apportion.cli.progress import Progress
    from apportion.experiments.extensions import check_group, check_name, import_modules
    from apportion.experiments.recipe import changed_name
    from apportion.experiments.run import run_with_teacher

    modules = tuple(imports or ())
    checksums = import_modules(modules)
    changes = parse_settings(set_)
    found = {changed_name(key, changes): recipe for key, recipe in change_recipes(name, changes).items()}
    if run_name is not None:
        if len(found) != 1:
            raise typer.BadParameter(f"--name is for one recipe, but {name} has {len(found)}")
        found = {check_name(run_name): recipe for recipe in found.values()}
    for key, recipe in found.items():
        check_group(key, recipe)
    recipes = [
        (key, replace(recipe, seed=seed)) for seed in parse_seeds(seeds) for key, recipe in found.items()
    ]
    settings = {"device": device, "data": data, "exact": exact, "force": force, "imports": modules}
    if jobs > 1 or scheduler is not None:
        if "RANK" in os.environ:
            raise typer.BadParameter(
                "under torchrun all processes share one run; leave out --jobs and --scheduler"
            )
        run_in_parallel(recipes, out, jobs, scheduler, tensorboard, settings, checksums)
        return
    is_first_process = os.environ.get("RANK", "0") == "0"  # of those that torchrun started
    for key, recipe in recipes:
        event_files = EventFiles() if tensorboard and is_first_process else nullcontext()
        with Progress() as progress, event_files as events:
            for folder, epochs, line in run_with_teacher(recipe, out, key, **settings):
                if line is None and is_first_process:
                    progress.print(
                        f"{folder.relative_to(out)}: {finished_before(folder, checksums)}, skipped"
                    )
                elif line is not None and is_first_process:
                    progress.show_epoch(str(folder.relative_to(out)), epochs, line)
                if events is not None and line is not None:
                    events.write(folder, line)


def finished_before(folder: Path, checksums: dict[str, str]) -> str:
    """What is printed about a finished run. It may have been made by another state of a user's module."""
    from apportion.experiments.run_folder import changed_modules

    changed = [f"{module}.py" for module in changed_modules(folder, checksums)]
    return f"finished before with another {' and '.join(changed)}" if changed else "finished before"


def run_in_parallel(
    recipes: "list[tuple[str, Recipe]]",
    out: Path,
    jobs: int,
    scheduler: str | None,
    tensorboard: bool,
    settings: dict[str, Any],
    checksums: dict[str, str],
) -> None:
    """Make the runs, print a line for each that has ended, and fail at the end if any of them failed."""
    from apportion._untrusted import printable
    from apportion.errors import RunError
    from apportion.experiments.parallel import dask_cluster, local_processes, run_all
    from apportion.experiments.run_folder import read_log, read_result

    out = out.resolve()  # workers have working directories of their own
    if settings["data"] is not None:
        settings = settings | {"data": settings["data"].resolve()}
    engines = dask_cluster(scheduler, settings) if scheduler else nullcontext(local_processes(jobs, settings))
    failed = 0
    event_files = EventFiles() if tensorboard else nullcontext()
    with event_files as events, engines as engine:
        for number, result in enumerate(run_all(recipes, out, engine, settings["force"]), 1):
            folder = result.job.folder
            if result.problem is not None:
                failed += 1
                text = f"failed: {result.problem}"
            else:
                took = f"{result.seconds:.1f} s" if result.seconds else finished_before(folder, checksums)
                text = f"test {read_result(folder)['test_accuracy']['last']:.2f} %, {took}"
                if events is not None and result.seconds:
                    for line in read_log(folder):
                        events.write(folder, line)
            print(f"{number}: {printable(folder.relative_to(out))}: {printable(text, 2000)}", flush=True)
    if failed:
        raise RunError(f"{failed} runs failed, for the reasons above; the others are finished")


class EventFiles:
    """TensorBoard's event files: every number of a log, in the folder of its run."""

    def __init__(self) -> None:
        from tensorboardX import SummaryWriter

        self.writers: dict[Path, Any] = {}
        self.writer_type: Any = SummaryWriter

    def __enter__(self) -> "EventFiles":
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for writer in self.writers.values():
            writer.close()

    def write(self, folder: Path, line: dict[str, Any]) -> None:
        from apportion.report.tables import flat_numbers

        epoch = line["epoch"]
        if folder not in self.writers:
            # a run that resumes repeats the epochs after its checkpoint: their old numbers are dropped
            self.writers[folder] = self.writer_type(str(folder), purge_step=epoch)
        for name, value in flat_numbers(line):
            if name != "epoch":
                self.writers[folder].add_scalar(name.replace(".", "/"), value, epoch)


# --- figures


class FigureKind(StrEnum):
    curves = "curves"
    labels = "labels"
    confusion = "confusion"


def figure(
    kind: Annotated[
        FigureKind,
        typer.Argument(
            metavar="KIND",
            help="curves: a quantity by epoch; labels: correct labels by epoch of a second stage; confusion: "
            "the test part of one recipe.",
        ),
    ],
    root: RunFolders,
    out: Annotated[Path, typer.Option(help="The file to write: .png, .svg or .pdf.")],
    cell: Annotated[
        list[str] | None,
        typer.Option(help="A recipe such as digits/dllp/16, or a group; repeatable; default: all."),
    ] = None,
    quantity: Annotated[str, typer.Option(help="Of curves: any quantity of the log.")] = "test_accuracy",
) -> None:
    """Draw a figure of runs for a paper, as PNG, SVG or PDF."""
    from matplotlib import rc_context

    from apportion._untrusted import printable
    from apportion._writing import check_writable_place
    from apportion.errors import RunError
    from apportion.report import figures
    from apportion.report.tables import collect

    figures.check_format(out)
    check_writable_place(out, error=RunError)
    cells = collect(root)
    if cell:
        cells = {
            name: found
            for name, found in cells.items()
            if any(name == wanted or name.startswith(f"{wanted}/") for wanted in cell)
        }
    if not cells:
        wanted = f" of {printable(', '.join(cell))}" if cell else ""
        raise RunError(f"there is no finished run{wanted} below {printable(root)}")
    first = next(iter(cells.values()))
    with rc_context(figures.STYLE):
        if kind is FigureKind.curves:
            drawing = figures.curves_figure(cells, quantity)
        elif kind is FigureKind.labels:
            with_second_stage = [found for name, found in cells.items() if "+plot" in name]
            drawing = figures.labels_figure(with_second_stage[0] if with_second_stage else first)
        else:
            drawing = figures.confusion_figure(first)
        figures.save_figure(drawing, out, dpi=200)
    print(printable(out))


def demo(
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of points, bags and networks.")] = 1,
) -> None:
    """Learn two moons with DLLP and LLP-GAN, alone and with PLOT; then again with first stages stopped early.

    Prints tables and draws figures, in under two minutes.
    """
    import tempfile
    from dataclasses import replace

    import torch

    from apportion._writing import explain_write_errors
    from apportion.cli.progress import Progress
    from apportion.errors import RunError
    from apportion.experiments.recipes import FIGURE_2, FIGURE_2_EARLY
    from apportion.experiments.run import folder_of_run, run_with_teacher
    from apportion.report.figures import moons_figure, moons_table, save_figure

    torch.set_num_threads(1)  # networks this small are slower on two threads
    with explain_write_errors(out, error=RunError):
        out.mkdir(parents=True, exist_ok=True)
    print(
        "40 bags of 50 points. For each bag the fraction of either moon is known; no point's label is used.\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for recipes, title in (
            (FIGURE_2, "150 epochs"),
            (FIGURE_2_EARLY, "first stage stopped after 40 epochs"),
        ):
            folders = []
            with Progress() as progress:
                for name, unseeded in recipes.items():
                    recipe = replace(unseeded, seed=seed)
                    for place, epochs, line in run_with_teacher(recipe, root, name, device="cpu"):
                        if line is not None:
                            progress.show_epoch(str(place.relative_to(root).parent), epochs, line)
                    folders.append(folder_of_run(root, name, recipe))
            print(f"\n{title}\n{moons_table(folders)}")
            stem = out / next(iter(recipes)).split("/")[0]
            paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
            drawing = moons_figure(folders, title)
            for path in paths:
                save_figure(drawing, path)
            print("figure: " + ", ".join(str(path) for path in paths) + "\n")


# --- data sets

data_app = typer.Typer(help="Download and list data sets.", no_args_is_help=True)


@data_app.command()
def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="cifar10, mnist, …; see `apportion data list`.")
    ],
    data: DataFolder = None,
) -> None:
    """Download data sets from where they are published, and check their checksums."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from apportion.datasets import default_folder, fetch_dataset

    for name in names:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns) as progress:
            tasks: dict[str, Any] = {}

            def show_bytes(
                file: str, done: int, total: int, progress: Any = progress, tasks: Any = tasks
            ) -> None:
                if file not in tasks:
                    tasks[file] = progress.add_task(file, total=total)
                progress.update(tasks[file], completed=done)

            folder = fetch_dataset(name, data or default_folder(), show_bytes)
        print(f"{name} is in {folder}")


@data_app.command("list")
def list_data(data: DataFolder = None) -> None:
    """Print which data sets are in the folder, and where."""
    from apportion.datasets import DOWNLOADS, default_folder, find_dataset

    for name in DOWNLOADS:
        place = find_dataset(name, data or default_folder())
        print(f"{name:14} {place or f'not here; run `apportion data fetch {name}`'}")
