"""Figures for papers, of any runs: curves by epoch and a confusion matrix, in one style."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from apportion import runs
from apportion.errors import RunError
from apportion.report.collect import Cell
from apportion.report.numbers import curves
from apportion.runs.files import whole_file

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "savefig.bbox": "tight",
    "svg.hashsalt": "apportion",
    "pdf.fonttype": 42,  # text stays text
}
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#555555",
)  # told apart by most eyes
DASHES = ("-", "--", ":", "-.")  # with the colors: no line is told by its color alone


def curves_figure(cells: Mapping[str, Cell], quantity: str = "test_accuracy") -> Figure:
    """A quantity of the log by epoch: the mean of a cell's seeds, and from the least to the most of them."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    known: set[str] = set()
    for (name, cell), color, dash in zip(cells.items(), cycle(COLOURS), cycle(DASHES), strict=False):
        logs = [runs.read_log(folder) for folder in cell.folders]
        found = [curves(log) for log in logs]
        known |= {each for one in found for each in one}
        lines = [one[quantity] for one in found if quantity in one]
        if lines:
            epochs = [line["epoch"] for line in logs[0]]
            low, mean, high = _band(lines)
            panel.plot(epochs[: len(mean)], mean, dash, color=color, label=name)
            panel.fill_between(epochs[: len(mean)], low, high, color=color, alpha=0.15, linewidth=0)
    if not panel.lines:
        raise RunError(f"no run has a quantity '{quantity}'; there are {', '.join(sorted(known)) or 'none'}")
    panel.set_xlabel("epoch")
    panel.set_ylabel(quantity.replace("_", " ").replace(".", ": "))
    panel.legend()
    return figure


def _band(lines: Sequence[Sequence[float | None]]) -> tuple[list[float], list[float], list[float]]:
    """Least, mean and most at each epoch that every seed has; a gap is NaN, which is not drawn."""
    points = [[v for v in values if v is not None] for values in zip(*lines, strict=False)]
    nan = float("nan")
    return (
        [min(values, default=nan) for values in points],
        [statistics.fmean(values) if values else nan for values in points],
        [max(values, default=nan) for values in points],
    )


def confusion_figure(cell: Cell) -> Figure:
    """The test part of a cell's first seed, by true and predicted class, each row in per cent."""
    matrix = cell.results[0].get("confusion")
    if not matrix:
        raise RunError(f"{cell.folders[0]} has no confusion matrix; run it again")
    shares = [[100 * n / max(1, sum(row)) for n in row] for row in matrix]
    k = len(matrix)
    figure = Figure(figsize=(1.2 + 0.32 * min(k, 20), 1 + 0.32 * min(k, 20)), layout="constrained")
    panel = figure.subplots()
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    panel.grid(visible=False)
    for i, row in enumerate(shares if k <= 20 else []):
        for j, share in enumerate(row):
            if share >= 0.5:
                ink = "white" if share > 55 else "black"
                panel.text(j, i, f"{share:.0f}", ha="center", va="center", fontsize=7, color=ink)
    panel.set_xlabel("predicted class")
    panel.set_ylabel("true class, % of its row")
    return figure


DATES: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}


def check_ending(path: Path) -> None:
    if path.suffix not in DATES:
        raise RunError(f"{path} must end in .png, .svg or .pdf")


def save_as(figure: Figure, path: Path) -> None:
    """PNG, SVG or PDF by the name's ending; the same bytes for the same figure."""
    check_ending(path)
    with whole_file(path) as beside:
        figure.savefig(beside, dpi=200, format=path.suffix[1:], metadata=DATES[path.suffix])
