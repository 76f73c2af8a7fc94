"""Two moons, with the library and no recipe: what the first stage gets wrong, and what transport repairs.

Two thousand points lie in forty bags of fifty. All that is known of a bag is its share of either moon. The
first stage is stopped early on purpose, so that there is something to repair.

    python examples/plot_two_moons.py [FOLDER]     about ten seconds on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from apportion import make_bags
from apportion._random import stream
from apportion.datasets.synthetic import moons
from apportion.evaluate import accuracy, predict, proportion_error
from apportion.methods import DLLP
from apportion.networks import mlp
from apportion.optim import constant, flat, make_optimizer
from apportion.pipeline import first_stage, second_stage
from apportion.pseudo_labels import hard_labels

SEED = 1
COLOURS, MARKERS = ("#c0392b", "#1e8449"), ("o", "^")


def regions(panel: Axes, classifier: nn.Module) -> None:
    """Shade the plane by the predicted class."""
    across, up = np.linspace(-1.5, 2.5, 200), np.linspace(-1.1, 1.6, 140)
    plane = torch.from_numpy(np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)).float()
    share = predict(classifier, plane)[:, 1].exp().view(len(up), len(across)).numpy()
    panel.contourf(across, up, share, levels=[0, 0.5, 1], colors=COLOURS, alpha=0.18)
    panel.contour(across, up, share, levels=[0.5], colors="black", linewidths=0.8)


def points(panel: Axes, x: Tensor, classes: Tensor, wrong: Tensor, title: str) -> None:
    """Points in the color of the class they were given, mistakes ringed."""
    for c in (0, 1):
        here = x[classes == c]
        panel.scatter(here[:, 0], here[:, 1], s=6, c=COLOURS[c], marker=MARKERS[c], linewidths=0, alpha=0.7)
    panel.scatter(x[wrong, 0], x[wrong, 1], s=26, facecolors="none", edgecolors="black", linewidths=0.9)
    panel.set_title(f"{title}: {int(wrong.sum())} wrong of {len(x)}", fontsize=10)
    panel.set_xticks([])
    panel.set_yticks([])


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    first, second = (4, 12) if small else (40, 80)  # epochs
    torch.manual_seed(SEED)
    data = moons(SEED)
    # The true labels part company with the bags here; they are used below only to count mistakes.
    bags, hidden = make_bags(data.x, data.y, size=50, n_classes=2, generator=stream(SEED, "bags"))

    # The first stage: match the mean prediction of each bag to its shares.
    teacher = mlp((2,), 2, widths=(64, 64, 64))
    optimizer = make_optimizer(teacher, "adam", 1e-3)
    for epoch_state in first_stage(
        DLLP(teacher), bags, [optimizer], epochs=first, seed=SEED, batch_size=100,
        schedule=constant,
    ):  # fmt: skip
        if epoch_state.epoch.number % 20 == 0:
            print(f"teacher, epoch {epoch_state.epoch.number}: {epoch_state.epoch.terms}")

    # Transport: the likeliest labels of these predictions that have every bag's counts.
    log_probs = predict(teacher, bags.x)
    labels = hard_labels(log_probs, bags.sizes, bags.proportions)
    print(
        f"share misplaced: {proportion_error(log_probs, bags.sizes, bags.proportions):.4f} by the teacher, ",
        end="",
    )
    print(f"{proportion_error(labels.log(), bags.sizes, bags.proportions):.4f} by the labels")

    # The second stage: a new network learns the labels; from epoch 10 on it relabels after every epoch.
    student = mlp((2,), 2, widths=(64, 64, 64))
    optimizer = make_optimizer(student, "adam", 1e-3)
    for epoch_state in second_stage(
        log_probs, student, bags, [optimizer], epochs=second, warmup_epochs=10, seed=SEED, batch_size=100,
        schedule=flat,
    ):  # fmt: skip
        if epoch_state.epoch.number % 20 == 0:
            print(f"student, epoch {epoch_state.epoch.number}: {epoch_state.epoch.terms}")

    for name, classifier in (("teacher", teacher), ("student", student)):
        print(f"{name}: {accuracy(predict(classifier, data.test_x), data.test_y):.4f} of fresh points right")

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    regions(panels[0], teacher)
    regions(panels[2], student)
    for panel, title, scores in (
        (panels[0], "DLLP, stopped early", log_probs),
        (panels[1], "its labels by transport", labels),
        (panels[2], "DLLP + PLOT", predict(student, bags.x)),
    ):
        classes = scores.argmax(1)
        points(panel, bags.x, classes, classes != hidden, title)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "two-moons.png", dpi=120)
    print(f"figure: {folder / 'two-moons.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
