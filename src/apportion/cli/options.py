"""The options of commands about tables, each described once.

Several commands share options. A dataclass holds those that belong together, and `with_options` gives a
command the options of its dataclasses. Names are those of the Python parameters.
"""

import csv
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from apportion.tables.spec import TableSpec

DATA, PROPORTIONS, TRAINING = "Table", "Proportions", "Training"  # panels of --help


def option(*names: str, panel: str, text: str, metavar: str | None = None, **settings: Any) -> Any:
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **settings)


Table = Annotated[
    Path, typer.Argument(metavar="TABLE", help="CSV, Parquet or Excel file with one row per instance.")
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder that `apportion fit` or apportion.save wrote.")
]
Device = Annotated[
    str, option(panel=TRAINING, text="cpu, cuda, mps, or auto: cuda for images if there is one.")
]
Missing = Annotated[
    list[str] | None,
    option(panel=DATA, metavar="TEXT", text="Text of a CSV that means a missing value; repeatable."),
]

Weight = Annotated[
    str | None,
    option(panel=DATA, metavar="COLUMN", text="How much each row counts in its bag, such as people."),
]


@dataclass
class ProportionOptions:
    """Bags and what is known about them."""

    bag: Annotated[
        list[str] | None,
        option(
            panel=PROPORTIONS,
            metavar="COLUMN",
            text="Column with the bag of each row. Repeatable, with a FILE each.",
        ),
    ] = None
    proportions: Annotated[
        list[Path] | None,
        option(
            panel=PROPORTIONS,
            metavar="FILE",
            text="One row per bag: its id, and a column of shares per class.",
        ),
    ] = None
    counts: Annotated[
        list[Path] | None,
        option(
            panel=PROPORTIONS, metavar="FILE", text="The same with counts that sum to the rows of the bag."
        ),
    ] = None
    shares: Annotated[
        str,
        option(
            panel=PROPORTIONS, metavar="A,B", text="Columns of TABLE that repeat the shares of the row's bag."
        ),
    ] = ""
    percent: Annotated[
        bool, option("--percent", panel=PROPORTIONS, text="Shares are percentages that sum to 100.")
    ] = False
    key: Annotated[
        list[str] | None,
        option(panel=PROPORTIONS, metavar="COLUMN", text="Column of the bags in FILE, if its name differs."),
    ] = None
    classes: Annotated[
        str,
        option(
            panel=PROPORTIONS,
            metavar="A,B",
            text='Columns of FILE that are classes; default: all. "A, b" has a comma.',
        ),
    ] = ""
    std: Annotated[
        list[str] | None,
        option(
            panel=PROPORTIONS,
            metavar="NUMBER",
            text="Standard deviation of the error of each number, or 'estimate'.",
        ),
    ] = None
    normalize: Annotated[
        bool,
        option("--normalize", panel=PROPORTIONS, text="Rescale rounded shares, or counts of a larger group."),
    ] = False
    missing_bags: Annotated[
        Literal["error", "allow"],
        option(
            panel=PROPORTIONS, metavar="error|allow", text="Bags without a row in FILE, or without numbers."
        ),
    ] = "error"
    missing_cells: Annotated[
        Literal["error", "impute"],
        option(
            panel=PROPORTIONS,
            metavar="error|impute",
            text="Single missing numbers: impute what is left of the bag.",
        ),
    ] = "error"
    rest: Annotated[
        str | None,
        option(panel=PROPORTIONS, metavar="NAME", text="Name of a class for what the columns leave open."),
    ] = None


@dataclass
class FeatureOptions:
    """Which columns are features."""

    drop: Annotated[str, option(panel=DATA, metavar="A,B", text="Columns that are not features.")] = ""
    categorical: Annotated[
        str,
        option(
            panel=DATA, metavar="A,B", text="Columns that are categories although they look like numbers."
        ),
    ] = ""
    keep: Annotated[
        str,
        option(panel=DATA, metavar="A,B", text="Columns of --bag that are features too, such as age groups."),
    ] = ""
    known_labels: Annotated[
        str | None, option(panel=DATA, metavar="COLUMN", text="Class of a few rows, empty in all others.")
    ] = None
    weight: Weight = None
    image: Annotated[
        str | None,
        option(panel=DATA, metavar="COLUMN", text="Learn from the image files that this column names."),
    ] = None
    pixels: Annotated[
        int | None, option(panel=DATA, min=8, max=4096, text="Resize images to N × N pixels.")
    ] = None


@dataclass
class TrainingOptions:
    """Parameters of ProportionClassifier."""

    model: Annotated[
        str,
        option(
            panel=TRAINING,
            text="Rows: average (of the next three), linear, trees, mlp. Images: conv13, resnet9, resnet18, "
            "wrn_28_2.",
        ),
    ] = "auto"
    method: Annotated[
        str,
        option(
            panel=TRAINING,
            text="dllp, count_likelihood, llp_vat, llp_gan, rot, two_views, llp_mm, easy_llp, mixbag, "
            "mean_map (a linear model).",
        ),
    ] = "auto"
    pseudo_labels: Annotated[
        str,
        option(panel=TRAINING, text="Second stage: soft, hard, predicted, argmax; none: no second stage."),
    ] = "auto"
    reg: Annotated[float, option(panel=TRAINING, text="Softness of pseudo-labels.")] = 1.0
    epochs: Annotated[int | None, option(panel=TRAINING, text="Epochs of the first stage.")] = None
    student_epochs: Annotated[int | None, option(panel=TRAINING, text="Epochs of the second stage.")] = None
    learning_rate: Annotated[float | None, option(panel=TRAINING, text="Of the first stage.")] = None
    student_learning_rate: Annotated[float | None, option(panel=TRAINING, text="Of the second stage.")] = None
    batch_size: Annotated[int | None, option(panel=TRAINING, text="Rows per step.")] = None
    horizontal_flip: Annotated[
        bool,
        option(
            "--horizontal-flip/--no-horizontal-flip",
            panel=TRAINING,
            text="Do mirror images have the same class?",
        ),
    ] = True
    validation_fraction: Annotated[
        float, option(panel=TRAINING, text="Share of the bags that is held out to measure the model.")
    ] = 0.0
    select_by: Annotated[
        str | None,
        option(
            panel=TRAINING, metavar="SCORE", text="Keep the best epoch on held-out bags, by likelihood, …"
        ),
    ] = None
    calibrate: Annotated[
        bool, option("--calibrate", panel=TRAINING, text="Fit a temperature on held-out bags.")
    ] = False
    random_state: Annotated[
        int, option("--random-state", "--seed", panel=TRAINING, text="Seed of networks and batches.")
    ] = 0
    device: Device = "auto"

    def parameters(self) -> dict[str, Any]:
        """The parameters of ProportionClassifier."""
        parameters = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.pseudo_labels == "none":
            parameters["pseudo_labels"] = None
        return parameters


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclasses as parameters, from which typer makes options."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += inspect.signature(parameter.annotation, eval_str=True).parameters.values()
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        arguments: dict[str, Any] = {}
        for name, group in groups.items():
            arguments[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values, **arguments)

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    expanded.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return expanded


def make_spec(
    table: Path,
    proportions: ProportionOptions,
    features: FeatureOptions | None = None,
    missing: list[str] | None = None,
    weight: str | None = None,
) -> "TableSpec":
    """What the options say about a table. Options that do not go together raise a SettingsError."""
    from apportion.errors import SettingsError
    from apportion.tables.spec import TableSpec

    features = features or FeatureOptions()
    if features.pixels is not None and features.image is None:
        raise SettingsError("--pixels is for images; name the column of their files with --image")
    kind: Literal["shares", "percent", "counts"] = "shares"
    if proportions.counts:
        kind = "counts"
    elif proportions.percent:
        kind = "percent"
    return TableSpec(
        table,
        bags=_bag_columns(proportions),
        kind=kind,
        shares=split_names(proportions.shares),
        classes=split_names(proportions.classes),
        normalize=proportions.normalize,
        missing_bags=proportions.missing_bags,
        missing_cells=proportions.missing_cells,
        rest=proportions.rest,
        known_labels=features.known_labels,
        weight=features.weight or weight,
        drop=split_names(features.drop),
        categorical=split_names(features.categorical),
        keep=split_names(features.keep),
        missing=tuple(missing or ()),
        image=features.image,
        pixels=features.pixels,
    )


def _bag_columns(options: ProportionOptions) -> tuple[Any, ...]:
    """Each --bag with its file, key and standard deviation."""
    from apportion.errors import SettingsError
    from apportion.tables.spec import BagColumn

    bags = options.bag or []
    if not bags:
        raise SettingsError("--bag is missing; name the column that says which bag each row belongs to")
    sources = [bool(options.proportions), bool(options.counts), bool(options.shares)]
    if sum(sources) != 1:
        raise SettingsError("pass one of --proportions FILE, --counts FILE and --shares COLUMNS")
    if options.percent and options.counts:
        raise SettingsError("--percent is for shares; leave it out next to --counts")
    files: list[Path | None] = [*(options.proportions or ()), *(options.counts or ())]
    if options.shares:
        files = [None]
    keys = options.key or [None] * len(bags)
    if len(files) != len(bags) or len(keys) != len(bags):
        n_keys = len(options.key or ())
        what = f"there are {len(bags)} --bag, {len(files)} files or --shares, and {n_keys} --key"
        raise SettingsError(f"{what}; pass one file, and one key or none, for each --bag, in the same order")
    stds = _standard_deviations(options.std or [], len(bags))
    return tuple(BagColumn(*each) for each in zip(bags, files, keys, stds, strict=True))


def _standard_deviations(texts: list[str], n: int) -> list[Any]:
    """One for each of n groupings; a single one is for all, and 0 means that there is no error."""
    from apportion.errors import SettingsError

    if len(texts) not in (0, 1, n):
        raise SettingsError(f"there are {len(texts)} --std and {n} --bag; pass one, or one for each")
    values: list[Any] = []
    for text in texts or ["0"]:
        try:
            values.append(text if text == "estimate" else float(text) or None)
        except ValueError:
            raise SettingsError(
                f"--std is {text!r}; pass a standard deviation such as 1.5, or estimate"
            ) from None
    return values * n if len(values) == 1 else values


def split_names(text: str) -> tuple[str, ...]:
    """Names separated by commas; one that has a comma itself stands in double quotes, as in a CSV."""
    names = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(name.strip() for name in names if name.strip())


def check_separate(outputs: Sequence[Path | None], inputs: Sequence[Path]) -> None:
    """Refuse to write over a file that is read, under any name or link, and two results to one place."""
    from apportion._untrusted import printable
    from apportion.errors import SettingsError

    others = list(inputs)
    for output in outputs:
        if output is None:
            continue
        for path in others:
            both = output.exists() and path.exists()
            same = output.samefile(path) if both else output.resolve() == path.resolve()
            if same:
                what = f"{printable(output)} would overwrite {printable(path)}"
                raise SettingsError(f"{what}, which this command reads or writes; name another file")
        others.append(output)
