"""Handwritten digits in bags of sixteen: nobody ever says which image shows which digit.

scikit-learn's 1,797 small images, cut at random into bags. Known of a bag: how many of each digit it holds.
The picture shows test images by what the network takes them for, its mistakes in red.

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

BAG = 16


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    x, y = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(x / 16, y, test_size=0.3, random_state=0)
    bags = np.arange(len(x)) // BAG  # the rows were shuffled: these are random bags
    epochs = {"epochs": 5, "student_epochs": 2} if small else {}

    # Labels given beside bags are counted in every bag and not used again.
    for second in (None, "soft"):
        classifier = ProportionClassifier(pseudo_labels=second, random_state=0, **epochs)
        classifier.fit(x, y, bags=bags)
        right, found = classifier.score(test_x, test_y), (classifier.transduction_ == y).mean()
        name = "both stages" if second else "first stage alone"
        print(f"{name}: {right:.3f} of the test images right, {found:.3f} of the training images found")

    predicted = classifier.predict(test_x)
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = figure.subplots(10, 3 if small else 15)
    for digit, row in enumerate(panels):
        chosen = np.flatnonzero(predicted == digit)
        chosen = chosen[np.argsort(test_y[chosen] == digit, kind="stable")][: len(row)]  # mistakes first
        for panel in row:
            panel.axis("off")
        for panel, i in zip(row, chosen, strict=False):
            shade = "Grays" if test_y[i] == digit else "Reds"
            panel.imshow(test_x[i].reshape(8, 8), cmap=shade)
        row[0].set_title(str(digit), loc="left", fontsize=8, x=-0.9, y=0.1)
    figure.suptitle(f"Taken for 0 to 9, learned from counts in bags of {BAG}; mistakes in red", fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "digits.png", dpi=120)
    print(f"figure: {folder / 'digits.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
