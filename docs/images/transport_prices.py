"""Draws transport-prices.svg, how prices turn an argmax into labels with given counts.

python docs/images/transport_prices.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from apportion.transport import assign_with_duals

COLOURS = np.array(["#c0392b", "#1e8449", "#2471a3"])
WANTED = np.array([10, 16, 18])


def panel(
    axes: Axes, points: np.ndarray, classes: np.ndarray, prices: np.ndarray, ringed: np.ndarray
) -> None:
    """Score differences to the third class, colored by class; the lines are where two classes are equal."""
    x, y = prices[0] - prices[2], prices[1] - prices[2]
    for across, up in (([x, x], [-9, y]), ([-9, x], [y, y]), ([x, x + 9], [y, y + 9])):
        axes.plot(across, up, color="#5f6368", lw=1)
    axes.scatter(*points[ringed].T, s=110, facecolors="none", edgecolors="#202124")
    axes.scatter(*points.T, c=COLOURS[classes], s=26)
    counts = np.bincount(classes, minlength=3)
    axes.set(xlim=(-5.5, 6), ylim=(-5.5, 6), xticks=[], yticks=[], xlabel="score of red − score of blue")
    axes.set_title(f"red {counts[0]}, green {counts[1]}, blue {counts[2]}", fontsize=10)


def main() -> None:
    generator = np.random.default_rng(4)
    scores = 1.6 * generator.normal(size=(WANTED.sum(), 3)) + [0.9, 0.2, -0.6]
    first = scores.argmax(1)
    answer = assign_with_duals(scores, [len(scores)], WANTED[None])
    classes, points = answer.classes.numpy(), scores[:, :2] - scores[:, 2:]
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.9))
    panel(axes[0], points, first, np.zeros(3), np.zeros(len(scores), bool))
    panel(axes[1], points, classes, answer.prices[0].numpy(), classes != first)
    axes[0].set_ylabel("score of green − score of blue")
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("transport-prices.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
