"""The paper's figure 2: points, decision regions and mistakes on two moons, and the table beside it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from apportion import runs
from apportion.datasets import load_dataset
from apportion.recipes import Recipe, from_json
from apportion.recipes.building import build_network
from apportion.report.paper import title_of

COLOURS = ("#c0392b", "#1e8449")  # the paper's red and green; the markers differ too
MARKERS = ("o", "^")


def moons_table(folders: Sequence[Path]) -> str:
    """Accuracy on fresh points, errors among training points, proportion error, seconds: one row a run."""
    rows = [
        f"{'method':18}{'fresh points':>14}{'train errors':>14}{'proportion error':>18}{'own seconds':>13}"
    ]
    for folder in folders:
        result, train = runs.read_result(folder), runs.read_result(folder)["train"]
        rows.append(
            f"{title_of(folder.parts[-3]):18}{result['test_accuracy']['last']:>12.2f} %{train['errors']:>14}"
            f"{train['proportion_error']:>16.2f} %{sum(result['seconds'].values()):>13.1f}"
        )
    return "\n".join(rows)


def moons_figure(folders: Sequence[Path], title: str) -> Figure:
    """A panel a run, two in a row: regions shaded by the predicted class, mistakes ringed in black."""
    figure = Figure(figsize=(8, 3.1 * (len(folders) // 2)), layout="constrained")
    panels = figure.subplots(len(folders) // 2, 2, sharex=True, sharey=True, squeeze=False)
    for i, (panel, folder) in enumerate(zip(panels.flat, folders, strict=True)):
        recipe = from_json((folder / "recipe.json").read_text("utf-8"))
        data = load_dataset(recipe.data.name, None, recipe.seed)
        across, up = np.linspace(-1.5, 2.5, 240), np.linspace(-1.1, 1.6, 180)
        grid = torch.from_numpy(np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)).float()
        share = predicted(folder, recipe, grid).softmax(1)[:, 1].view(len(up), len(across)).numpy()
        panel.contourf(across, up, share, levels=[0, 0.5, 1], colors=COLOURS, alpha=0.18)
        panel.contour(across, up, share, levels=[0.5], colors="black", linewidths=0.8)
        wrong = predicted(folder, recipe, data.x).argmax(1) != data.y
        for c in (0, 1):
            points = data.x[data.y == c]
            panel.scatter(
                points[:, 0],
                points[:, 1],
                s=5,
                c=COLOURS[c],
                marker=MARKERS[c],
                linewidths=0,
                alpha=0.6,
                rasterized=True,
            )
        panel.scatter(
            data.x[wrong, 0], data.x[wrong, 1], s=26, facecolors="none", edgecolors="black", linewidths=0.9
        )
        panel.set_title(
            f"({'abcdefgh'[i]}) {title_of(folder.parts[-3])}: {int(wrong.sum())} wrong of {len(wrong)}",
            fontsize=10,
        )
        panel.set_xticks([])
        panel.set_yticks([])
    figure.suptitle(f"Two moons, 40 bags of 50 points; {title}; wrong points are ringed", fontsize=10)
    return figure


def predicted(folder: Path, recipe: Recipe, x: Tensor) -> Tensor:
    """Logits of the run's classifier."""
    second = recipe.second
    network = recipe.network if second is None or second.network is None else second.network
    classifier = build_network(network, x.shape[1:], 2)
    classifier.load_state_dict(runs.read_weights(folder))
    with torch.no_grad():
        return classifier.eval()(x)
