"""Income of single people, learned from proportions of 64 people each.

The Adult census has 32,561 people to train on. How much is lost when nobody's income is known, but only its
proportion in every group of 64? The same network, trained on true labels, shows how much there was to
learn.

    python examples/plot_adult.py [FOLDER]     half a minute; needs `apportion data fetch adult`
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
        print("The Adult data are not here. Skipped; `apportion data fetch adult` downloads them.")
        return
    torch.set_num_threads(1)
    data = adult()
    n = 2000 if small else len(data.x)
    x, y = data.x[:n].numpy(), data.y[:n].numpy()
    test_x, test_y = data.test_x.numpy(), data.test_y.numpy()
    bags = random_bag_ids(data.x[:n], data.y[:n], 64, stream(1, "bags", "random", 64))

    figure = Figure(figsize=(5, 5), layout="constrained")
    panel = figure.subplots()
    for name, ids, pseudo_labels, color in (
        ("true labels", None, None, "black"),
        ("bags of 64, first stage", bags, None, "#2471a3"),
        ("bags of 64, both stages", bags, "soft", "#c0392b"),
    ):
        classifier = ProportionClassifier(pseudo_labels=pseudo_labels, random_state=1).fit(x, y, bags=ids)
        probability = classifier.predict_proba(test_x)[:, 1]
        accuracy = classifier.score(test_x, test_y)
        auc = roc_auc_score(test_y, probability)
        print(f"{name}: accuracy {accuracy:.4f}, AUC {auc:.4f}")
        false_positives, true_positives, _ = roc_curve(test_y, probability)
        label = f"{name}: {100 * accuracy:.1f} %, AUC {auc:.3f}"
        panel.plot(false_positives, true_positives, color=color, label=label)
    panel.set(xlabel="false positive rate", ylabel="true positive rate", title="Adult, test part")
    panel.legend(loc="lower right", fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "adult.png", dpi=120)
    print(f"figure: {folder / 'adult.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
