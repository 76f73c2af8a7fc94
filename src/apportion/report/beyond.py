"""Beyond the paper: what each method reaches at each bag size, and in how many seconds of one device."""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from apportion import runs
from apportion.report.collect import Cell, spread
from apportion.report.paper import LARGER, SIZES
from apportion.report.tables import markdown

Cells = Mapping[str, Cell]
Rows = Mapping[str, tuple[str, str, str]]  # title -> group, method, dash of its curve

CIFAR_10 = {
    "DLLP": ("table1", "dllp", ":"),
    "DLLP + PLOT": ("table1", "dllp+plot", "--"),
    "two views": ("beyond-conv13", "two-views", "-"),
    "two views + PLOT": ("beyond-conv13", "two-views+plot", "-."),
    "two views, Muon": ("beyond-conv13-muon", "two-views", "-"),
    "two views, batches of 1,024": ("beyond-conv13-1024", "two-views", ":"),
    "two views, batches of 1,024, + PLOT": ("beyond-conv13-1024", "two-views+plot", "-."),
    "two views, ResNet-9": ("beyond-resnet9", "two-views", "-"),
    "two views, ResNet-9, Muon": ("beyond-resnet9-muon", "two-views", "-"),
    "two views, ResNet-9 of width 96": ("beyond-resnet9-wide", "two-views", "-."),
    "two views, ResNet-9, argmax labels": ("beyond-resnet9-argmax", "two-views", ":"),
    "two views, ResNet-9, whole bags": ("beyond-resnet9-whole", "two-views", "--"),
}
CIFAR_100 = {
    "DLLP": ("table2", "dllp", ":"),
    "DLLP + PLOT": ("table2", "dllp+plot", "--"),
    "two views, ResNet-9": ("beyond-resnet9-cifar100", "two-views", "-"),
}
# of the rows, in their order; no two alike
COLOURS = [colormaps[name](i) for name, n in (("tab10", 10), ("Dark2", 8)) for i in range(n)]
# CIFAR-10, of any method as published up to 2025, WRN-28-2, up to 1,024 epochs, often the best test epoch
TICKS = (40, 60, 80, 90, 95, 97)
PUBLISHED = {16: 95.24, 32: 95.25, 64: 94.58, 128: 94.53, 256: 93.95}


def stages(cells: Cells, row: tuple[str, str, str], size: int) -> list[Cell] | None:
    """The run of a row after the run of its first stage, where both are there."""
    group, method, _ = row
    names = [f"{group}/{method.removesuffix('+plot')}/{size}"]
    names += [f"{group}/{method}/{size}"] if method.endswith("+plot") else []
    return [cells[name] for name in names] if all(name in cells for name in names) else None


def sizes_run(cells: Cells, rows: Rows) -> list[int]:
    """The bag sizes at which two views were run."""
    ours = [row for row in rows.values() if row[1].startswith("two-views")]
    return [size for size in (*SIZES, *LARGER) if any(stages(cells, row, size) for row in ours)]


def beyond_table(cells: Cells, rows: Rows, published: Mapping[int, float]) -> str:
    """Last epoch, and the seconds of all stages, compilation and evaluation included; empty without runs."""
    sizes = sizes_run(cells, rows)
    if not sizes:
        return ""
    found = {(title, size): stages(cells, row, size) for title, row in rows.items() for size in sizes}
    lines = []
    for title in (title for title in rows if any(found[title, size] for size in sizes)):
        row = [title]
        for size in sizes:
            parts = found[title, size]
            seconds = sum(part.seconds() for part in parts or [])
            last = spread(parts[-1].numbers("test_accuracy", "last")) if parts else ""
            row.append(f"**{last}**, {seconds:.0f} s" if parts else "–")
        lines.append(row)
    if published:
        lines.append(["published best", *(f"{published[s]:.2f}" if s in published else "–" for s in sizes)])
    return markdown(["", *(f"bags of {size}" for size in sizes)], lines)


def beyond_figure(cells: Cells, rows: Rows, published: Mapping[int, float]) -> Figure | None:
    """Test accuracy by seconds, a panel a bag size; halving the error is a step of one height everywhere."""
    sizes = sizes_run(cells, rows)
    if not sizes:
        return None
    across = min(4, len(sizes))
    down = -(-len(sizes) // across)
    figure = Figure(figsize=(3.2 * across, 2.6 * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    lines, lowest, best = {}, 65.0, None
    for panel, size in zip(panels.flat, sizes, strict=False):
        for color, (title, row) in zip(COLOURS, rows.items(), strict=False):
            if parts := stages(cells, row, size):
                seconds, accuracies = curve(parts)
                (lines[title],) = panel.plot(seconds, accuracies, row[2], color=color, label=title)
                lowest = min(lowest, accuracies[-1])
        if size in published:
            best = panel.axhline(published[size], color="0.7", linewidth=1, zorder=0)
        panel.set_title(f"bags of {size}", fontsize=9)
        panel.set_xlabel("seconds")
        panel.set_yscale("function", functions=(height, accuracy_at))
    for panel in panels.flat[len(sizes) :]:
        panel.remove()
    panels[0, 0].set_yticks(TICKS)  # of all panels, and the limits too
    panels[0, 0].set_ylim(lowest - 15, 97.5)
    for panel in panels[:, 0]:
        panel.set_ylabel("test accuracy, %")
    lines |= {} if best is None else {"published best": best}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=across, fontsize=8)
    return figure


def curve(parts: list[Cell]) -> tuple[list[float], list[float]]:
    """Seconds and accuracies of the first seed's last stage, which begins where the one before it ended."""
    *before, log = (runs.read_log(part.folders[0]) for part in parts)
    taken = [[sum(line.get("seconds", {}).values()) for line in each] for each in (*before, log)]
    clock = list(accumulate(second for each in taken for second in each))
    return clock[-len(log) :], [line["test_accuracy"] for line in log]


def height(accuracy: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(100 - accuracy, 0.01))


def accuracy_at(height: np.ndarray) -> np.ndarray:
    return 100 - np.exp(-height)
