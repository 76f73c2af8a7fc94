"""Handwritten digits in bags of sixteen: no image has a label.

The 1,797 small images of scikit-learn are divided into random bags. For each bag, only the number of zeros,
ones, ..., nines is known. The picture shows test images by predicted class, with errors in red.

    python examples/plot_digits.py [FOLDER]     about ten seconds on one core
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from apportion import ProportionClassifier

BAG_SIZE = 16


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    x, y = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(x / 16, y, test_size=0.3, random_state=0)
    bags = np.arange(len(x)) // BAG_SIZE  # the rows are shuffled, so these bags are random
    lengths = {"epochs": 5, "student_epochs": 2} if small else {}

    # With bags, labels are counted in every bag and not used again.
    for name, pseudo_labels in {"first stage": None, "both stages": "soft"}.items():
        classifier = ProportionClassifier(pseudo_labels=pseudo_labels, random_state=0, **lengths)
        classifier.fit(x, y, bags=bags)
        test_accuracy = classifier.score(test_x, test_y)
        train_accuracy = (classifier.transduction_ == y).mean()
        print(f"{name}: accuracy {test_accuracy:.3f} on test images, {train_accuracy:.3f} on training images")

    predicted = classifier.predict(test_x)
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(10, 3 if small else 15)
    for digit, row in enumerate(panels):
        shown = np.flatnonzero(predicted == digit)
        shown = shown[np.argsort(test_y[shown] == digit, kind="stable")][: len(row)]  # errors first
        for panel in row:
            panel.axis("off")
        for panel, i in zip(row, shown, strict=False):
            panel.imshow(test_x[i].reshape(8, 8), cmap="Grays" if test_y[i] == digit else "Reds")
        row[0].set_title(str(digit), loc="left", fontsize=8, x=-0.9, y=0.1)
    figure.suptitle(
        f"Predicted as 0 to 9, learned from counts in bags of {BAG_SIZE}; errors in red", fontsize=10
    )
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "digits.png", dpi=120)
    print(f"figure: {folder / 'digits.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
