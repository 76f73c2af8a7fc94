"""The paper's figures 3 and 4 from the logs of runs, in one style."""

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from apportion import runs
from apportion.report.collect import Cell, same_seeds
from apportion.report.paper import SIZES

STYLES = {  # color, dash: no curve is told by its color alone
    "predicted": ("#7f7f7f", ":", "TD: predictions"),
    "labels": ("#1f77b4", "--", "TD_OT: labels by transport"),
    "mean": ("#d62728", "-", "TD_OT_5: mean of the last five"),
}


def figure_3(cells: Mapping[str, Cell], name: str = "table1/dllp+plot/64") -> Figure | None:
    """Right labels by epoch of the second stage: without transport, with, and averaged."""
    if name not in cells:
        return None
    log = [line for line in runs.read_log(cells[name].folders[0]) if "label_accuracy" in line]
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    for key, (color, dash, label) in STYLES.items():
        epochs = [line["epoch"] for line in log]
        panel.plot(
            epochs,
            [line["label_accuracy"].get(key, math.nan) for line in log],
            dash,
            color=color,
            label=label,
        )
    panel.set_xlabel("epoch of the second stage")
    panel.set_ylabel("right among training instances, %")
    panel.set_title(f"{name}, {cells[name].folders[0].name}", fontsize=9)
    panel.legend(fontsize=8)
    return figure


SOFT = {"table1": "figure4", "table2": "figure4-cifar100"}  # where second stages with soft labels are


def figure_4(cells: Mapping[str, Cell], table: str = "table1") -> Figure | None:
    """Test accuracy by epoch for hard and soft labels of the same teacher, a panel a bag size."""
    kinds = {
        f"{table}/dllp+plot": ("hard", "-", "#1f77b4"),
        f"{SOFT[table]}/soft-1": ("soft, λ = 1", ":", "#7f7f7f"),
        f"{SOFT[table]}/soft-10": ("soft, λ = 10", "--", "#d62728"),
    }
    if not any(name.startswith(f"{SOFT[table]}/") for name in cells):
        return None
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    panels = figure.subplots(1, len(SIZES), sharey=True)
    lines = {}
    for panel, size in zip(panels, SIZES, strict=True):
        found, title = same_seeds(cells, [f"{stem}/{size}" for stem in kinds]), f"bags of {size}"
        for name, cell in found.items():
            label, dash, color = kinds[name.removesuffix(f"/{size}")]
            log = runs.read_log(cell.folders[0])
            curve = [line["epoch"] for line in log], [line["test_accuracy"] for line in log]
            (lines[label],) = panel.plot(*curve, dash, color=color, label=label)
            title = f"bags of {size}, {cell.folders[0].name}"
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("epoch of the second stage")
    panels[0].set_ylabel("test accuracy, %")
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize=8)
    return figure


def save(figure: Figure, stem: Path, dpi: int = 150) -> list[Path]:
    """The figure as PNG and SVG, the same bytes for the same figure."""
    import matplotlib

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    with matplotlib.rc_context({"svg.hashsalt": stem.name}):
        for path in paths:
            figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
