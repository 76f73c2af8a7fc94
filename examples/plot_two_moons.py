"""Two moons with the PyTorch library: what the first stage gets wrong, and what optimal transport corrects.

Two thousand points lie in forty bags of fifty. All that is known about a bag is its proportion of each
moon. The first stage is stopped early on purpose, so that there is something to correct.

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
from apportion.evaluate import accuracy, predict_log_proba, proportion_error
from apportion.methods import DLLP
from apportion.networks import mlp
from apportion.optim import constant, flat_then_linear, make_optimizer
from apportion.pipeline import first_stage, second_stage
from apportion.pseudo_labels import hard_labels

SEED = 1
COLORS = ("#c0392b", "#1e8449")
MARKERS = ("o", "^")


def draw_regions(panel: Axes, classifier: nn.Module) -> None:
    """Shade the plane by the predicted class."""
    horizontal = np.linspace(-1.5, 2.5, 200)
    vertical = np.linspace(-1.1, 1.6, 140)
    plane = torch.from_numpy(np.stack(np.meshgrid(horizontal, vertical), -1).reshape(-1, 2)).float()
    probability = (
        predict_log_proba(classifier, plane)[:, 1].exp().view(len(vertical), len(horizontal)).numpy()
    )
    panel.contourf(horizontal, vertical, probability, levels=[0, 0.5, 1], colors=COLORS, alpha=0.18)
    panel.contour(horizontal, vertical, probability, levels=[0.5], colors="black", linewidths=0.8)


def draw_points(panel: Axes, x: Tensor, classes: Tensor, wrong: Tensor, title: str) -> None:
    """Draw points in the color of their class, with errors circled."""
    for c in (0, 1):
        here = x[classes == c]
        panel.scatter(here[:, 0], here[:, 1], s=6, c=COLORS[c], marker=MARKERS[c], linewidths=0, alpha=0.7)
    panel.scatter(x[wrong, 0], x[wrong, 1], s=26, facecolors="none", edgecolors="black", linewidths=0.9)
    panel.set_title(f"{title}: {int(wrong.sum())} errors in {len(x)}", fontsize=10)
    panel.set_xticks([])
    panel.set_yticks([])


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    epochs = 4 if small else 40
    student_epochs = 12 if small else 80
    torch.manual_seed(SEED)
    data = moons(SEED)
    # The true labels leave the bags here. They are used below only to count errors.
    bags, hidden = make_bags(data.x, data.y, size=50, n_classes=2, generator=stream(SEED, "bags"))

    # The first stage matches the mean prediction of each bag to its proportions.
    teacher = mlp((2,), 2, widths=(64, 64, 64))
    optimizer = make_optimizer(teacher, "adam", 1e-3)
    for state in first_stage(
        DLLP(teacher), bags, [optimizer], epochs=epochs, schedule=constant, seed=SEED, batch_size=100
    ):
        if state.epoch.number % 20 == 0:
            print(f"teacher, epoch {state.epoch.number}: {state.epoch.terms}")

    # Optimal transport finds the most probable labels that have every bag's counts.
    log_probs = predict_log_proba(teacher, bags.x)
    labels = hard_labels(log_probs, bags.sizes, bags.proportions)
    teacher_error = proportion_error(log_probs, bags.sizes, bags.proportions)
    label_error = proportion_error(labels.log(), bags.sizes, bags.proportions)
    print(f"proportion error: teacher {teacher_error:.4f}, labels {label_error:.4f}")

    # In the second stage, a new network learns these labels. After ten epochs it relabels after every epoch.
    student = mlp((2,), 2, widths=(64, 64, 64))
    optimizer = make_optimizer(student, "adam", 1e-3)
    for state in second_stage(
        log_probs, student, bags, [optimizer], epochs=student_epochs, schedule=flat_then_linear, seed=SEED,
        warmup_epochs=10, batch_size=100,
    ):  # fmt: skip
        if state.epoch.number % 20 == 0:
            print(f"student, epoch {state.epoch.number}: {state.epoch.terms}")

    for name, classifier in (("teacher", teacher), ("student", student)):
        print(
            f"{name}: test accuracy {accuracy(predict_log_proba(classifier, data.test_x), data.test_y):.4f}"
        )

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    draw_regions(panels[0], teacher)
    draw_regions(panels[2], student)
    for panel, title, scores in (
        (panels[0], "DLLP, stopped early", log_probs),
        (panels[1], "its labels by transport", labels),
        (panels[2], "DLLP + PLOT", predict_log_proba(student, bags.x)),
    ):
        classes = scores.argmax(1)
        draw_points(panel, bags.x, classes, classes != hidden, title)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "two-moons.png", dpi=120)
    print(f"figure: {folder / 'two-moons.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
