"""Figures of runs in one style: curves, labels by epoch, a confusion matrix, and two moons."""

import math
import statistics
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from apportion._writing import atomic_file
from apportion.errors import RunError
from apportion.experiments.data import load_instances
from apportion.experiments.recipe import Recipe, from_json
from apportion.experiments.run import FRESH_ROUNDS, build_network
from apportion.experiments.run_folder import load_weights, read_log, read_recipe, read_result
from apportion.report.tables import Cell, Cells, log_curves, method_title, setting

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
    "pdf.fonttype": 42,  # text stays text
}
# distinguishable for most eyes; dashes, so that no line is identified by its color alone
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES = ("-", "--", ":", "-.")


def curves_figure(cells: Cells, quantity: str = "test_accuracy") -> Figure:
    """A quantity of the log by epoch: the mean of a cell's seeds in a band from the lowest to the highest."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    known: set[str] = set()
    for (name, cell), color, dash in zip(cells.items(), cycle(COLORS), cycle(DASHES), strict=False):
        logs = [read_log(folder) for folder in cell.folders]
        curves = [log_curves(log) for log in logs]
        for each in curves:
            known |= each.keys()
        values = [each[quantity] for each in curves if quantity in each]
        if not values:
            continue
        low, mean, high = _band(values)
        epochs = [line["epoch"] for line in logs[0]][: len(mean)]
        panel.plot(epochs, mean, dash, color=color, label=_plain(name))
        panel.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
    if not panel.lines:
        raise RunError(
            f"no run has the quantity '{quantity}'; choose one of {', '.join(sorted(known)) or 'none'}"
        )
    panel.set_xlabel("epoch")
    panel.set_ylabel(quantity.replace("_", " ").replace(".", ": "))
    panel.legend()
    return figure


def _band(curves: Sequence[Sequence[float | None]]) -> tuple[list[float], list[float], list[float]]:
    """Lowest, mean and highest value at each epoch that every seed has; NaN (not drawn) for a gap."""
    nan = math.nan
    points = [[value for value in values if value is not None] for values in zip(*curves, strict=False)]
    low = [min(values, default=nan) for values in points]
    mean = [statistics.fmean(values) if values else nan for values in points]
    high = [max(values, default=nan) for values in points]
    return low, mean, high


LABEL_CURVES = {  # quantity of the log -> color, dash, legend
    "predicted": ("#7f7f7f", ":", "TD: the student's predictions"),
    "fresh_labels": ("#1f77b4", "--", "TD_OT: the same with transport"),
    "fresh_mean": ("#d62728", "-", "TD_OT_5: mean of the last five TD_OT"),
    "mean": ("#009E73", "-.", "labels that the student learns"),
}
OLD_RUN = "TD_OT and TD_OT_5: not in the log of this run"


def label_curves(folder: Path) -> tuple[list[int], dict[str, list[float]]]:
    """The epochs of a second stage that made labels, and the curves of figure 3 that its log has, in percent.

    Older logs have no labels made from the predictions of each epoch. If the student learned just these, they
    are under the name of the labels it learned; their mean has a round of the teacher until the fifth.
    """
    lines = [line for line in read_log(folder) if "label_accuracy" in line]
    found = [line["label_accuracy"] for line in lines]
    curves = {
        name: [values.get(name, math.nan) for values in found]
        for name in LABEL_CURVES
        if any(name in values for values in found)
    }
    recipe = read_recipe(folder)
    learns_fresh = setting(recipe, "second", "labels") == "hard" and setting(recipe, "second", "ema") == 0
    if found and learns_fresh and "fresh_labels" not in curves:
        curves["fresh_labels"] = [values.get("labels", math.nan) for values in found]
        if setting(recipe, "second", "memory") == FRESH_ROUNDS:
            n_mixed = FRESH_ROUNDS - 1
            known = [values.get("mean", math.nan) for values in found]
            curves["fresh_mean"] = [math.nan] * len(known[:n_mixed]) + known[n_mixed:]
    return [line["epoch"] for line in lines], curves


def labels_figure(cell: Cell) -> Figure:
    """Correct labels by epoch of the first seed's second stage (figure 3), and of those that it learns."""
    folder = cell.folders[0]
    epochs, curves = label_curves(folder)
    if not epochs:
        raise RunError(
            f"{cell.name} has no second stage, so there are no labels to draw; choose another --cell"
        )
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    for name, (color, dash, label) in LABEL_CURVES.items():
        if name in curves:
            panel.plot(epochs, curves[name], dash, color=color, label=label)
    if "fresh_labels" not in curves:
        panel.plot([], [], " ", label=OLD_RUN)
    panel.set_xlabel("epoch of the second stage")
    panel.set_ylabel("correct among training instances, %")
    panel.set_title(_plain(f"{cell.name}, {folder.name}"), fontsize=9)
    panel.legend(fontsize=8)
    return figure


def confusion_figure(cell: Cell) -> Figure:
    """The test part of the first seed, by true and predicted class, each row in percent."""
    matrix = cell.results[0].get("confusion")
    if not matrix:
        raise RunError(f"{cell.folders[0]} has no confusion matrix; run it again")
    shares = [[100 * n / max(1, sum(row)) for n in row] for row in matrix]
    k = len(matrix)
    side = 0.32 * min(k, 20)
    figure = Figure(figsize=(1.2 + side, 1 + side), layout="constrained")
    panel = figure.subplots()
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    panel.grid(visible=False)
    if k <= 20:
        for i, row in enumerate(shares):
            for j, share in enumerate(row):
                if share >= 0.5:
                    color = "white" if share > 55 else "black"
                    panel.text(j, i, f"{share:.0f}", ha="center", va="center", fontsize=7, color=color)
    panel.set_xlabel("predicted class")
    panel.set_ylabel("true class, % of its row")
    return figure


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula, and that has a glyph for every character."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


# --- two moons: figure 2 of the paper

MOON_COLORS = ("#c0392b", "#1e8449")  # red and green as in the paper; the markers differ too
MOON_MARKERS = ("o", "^")


def moons_table(folders: Sequence[Path]) -> str:
    """One line per run: accuracy on fresh points, errors among training points, proportion error, seconds."""
    lines = [
        f"{'method':18}{'fresh points':>14}{'train errors':>14}{'proportion error':>18}{'own seconds':>13}"
    ]
    for folder in folders:
        result = read_result(folder)
        train = result["train"]
        accuracy = result["test_accuracy"]["last"]
        lines.append(
            f"{method_title(folder.parts[-3]):18}{accuracy:>12.2f} %{train['errors']:>14}"
            f"{train['proportion_error']:>16.2f} %{sum(result['seconds'].values()):>13.1f}"
        )
    return "\n".join(lines)


def moons_figure(folders: Sequence[Path], title: str) -> Figure:
    """One panel per run, two per row: regions shaded by the predicted class, mistakes ringed in black."""
    n_rows = len(folders) // 2
    figure = Figure(figsize=(8, 3.1 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, 2, sharex=True, sharey=True, squeeze=False)
    across = np.linspace(-1.5, 2.5, 240)
    up = np.linspace(-1.1, 1.6, 180)
    grid = torch.from_numpy(np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)).float()
    for i, (panel, folder) in enumerate(zip(panels.flat, folders, strict=True)):
        recipe = from_json((folder / "recipe.json").read_text("utf-8"))
        data = load_instances(recipe)
        share = _logits(folder, recipe, grid).softmax(1)[:, 1].view(len(up), len(across)).numpy()
        panel.contourf(across, up, share, levels=[0, 0.5, 1], colors=MOON_COLORS, alpha=0.18)
        panel.contour(across, up, share, levels=[0.5], colors="black", linewidths=0.8)
        is_wrong = _logits(folder, recipe, data.x).argmax(1) != data.y
        for c in (0, 1):
            x, y = data.x[data.y == c].T
            style = {"c": MOON_COLORS[c], "marker": MOON_MARKERS[c], "linewidths": 0, "alpha": 0.6}
            panel.scatter(x, y, s=5, rasterized=True, **style)
        x, y = data.x[is_wrong].T
        panel.scatter(x, y, s=26, facecolors="none", edgecolors="black", linewidths=0.9)
        method = method_title(folder.parts[-3])
        panel.set_title(
            f"({'abcdefgh'[i]}) {method}: {int(is_wrong.sum())} wrong of {len(is_wrong)}", fontsize=10
        )
        panel.set_xticks([])
        panel.set_yticks([])
    figure.suptitle(f"Two moons, 40 bags of 50 points; {title}; wrong points are ringed", fontsize=10)
    return figure


def _logits(folder: Path, recipe: Recipe, x: Tensor) -> Tensor:
    classifier = build_network(recipe.stage_network, x.shape[1:], 2)
    load_weights(folder, classifier)
    with torch.no_grad():
        return classifier.eval()(x)


# --- files

FORMATS: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}


def check_format(path: Path) -> None:
    if path.suffix not in FORMATS:
        raise RunError(f"{path} does not end in .png, .svg or .pdf; name the file with one of these endings")


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """PNG, SVG or PDF by the ending of the name. The same figure gives the same bytes."""
    check_format(path)
    with rc_context({"svg.hashsalt": path.stem}), atomic_file(path, error=RunError) as partial:
        figure.savefig(partial, dpi=dpi, format=path.suffix[1:], metadata=FORMATS[path.suffix])
