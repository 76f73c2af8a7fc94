"""Income of single people, learned from its share in groups of 64: Adult, 32,561 people of a census.

How much is lost when nobody's income is known, and only a share for every 64 people? The same network on true
labels says how much there was to gain.

    python examples/plot_adult.py [FOLDER]     half a minute; the data comes with `apportion data fetch adult`
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score, roc_curve

from apportion import ProportionClassifier
from apportion._random import stream
from apportion.bags.simulate import random_bag_ids
from apportion.datasets import default_folder, find_dataset
from apportion.datasets.adult import adult


def main(folder: Path, small: bool = False) -> None:
    if find_dataset("adult", default_folder()) is None:
        print("Adult is not here; `apportion data fetch adult` fetches it, and this story is skipped")
        return
    torch.set_num_threads(1)
    data = adult()
    n = 2000 if small else len(data.x)
    x, y, test_x, test_y = (part.numpy() for part in (data.x[:n], data.y[:n], data.test_x, data.test_y))
    bags = random_bag_ids(data.x[:n], data.y[:n], 64, stream(1, "bags", "random", 64))
    figure = Figure(figsize=(5, 5), layout="constrained")
    panel = figure.subplots()
    for name, groups, second, color in (
        ("true labels", None, None, "black"),
        ("shares of 64, first stage", bags, None, "#2471a3"),
        ("shares of 64, both stages", bags, "soft", "#c0392b"),
    ):
        classifier = ProportionClassifier(pseudo_labels=second, random_state=1).fit(x, y, bags=groups)
        share = classifier.predict_proba(test_x)[:, 1]
        right, area = classifier.score(test_x, test_y), roc_auc_score(test_y, share)
        print(f"{name}: accuracy {right:.4f}, AUC {area:.4f}")
        panel.plot(
            *roc_curve(test_y, share)[:2], color=color, label=f"{name}: {100 * right:.1f} %, AUC {area:.3f}"
        )
    panel.set(xlabel="wrongly taken for rich", ylabel="rightly taken for rich", title="Adult, test part")
    panel.legend(loc="lower right", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "adult.png", dpi=120)
    print(f"figure: {folder / 'adult.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
