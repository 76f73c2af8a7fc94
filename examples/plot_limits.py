"""Three special cases that connect the methods: supervised learning, clustering and hard labels.

1. With bags of one instance, the bag loss is cross-entropy with the true labels, so DLLP is supervised
   learning.
2. With one bag of everything and uniform proportions, the second stage, started from an untrained network,
   is the self-labeling clustering that PLOT is based on. Without transport it collapses into one class.
3. Soft labels approach the hard labels as the regularization decreases, if the best labeling is unique.

    python examples/plot_limits.py [FOLDER]     about half a minute on one core
"""

import sys
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from apportion import build_bags, make_bags
from apportion._random import stream
from apportion.datasets.synthetic import blobs, moons
from apportion.evaluate import accuracy, predict_log_proba
from apportion.losses import cross_entropy, proportion_loss
from apportion.methods import DLLP
from apportion.networks import mlp
from apportion.optim import constant, make_optimizer, one_cycle
from apportion.pipeline import first_stage, second_stage
from apportion.pseudo_labels import Labeler, argmax_labels, hard_labels, soft_labels

SEED = 2
COLORS = ("#c0392b", "#1e8449", "#2471a3", "#b9770e")
MARKERS = "o^sD"


def new_network(n_classes: int) -> nn.Module:
    torch.manual_seed(SEED)
    return mlp((2,), n_classes, widths=(64, 64, 64))


def compare_bag_sizes(panel: Axes, epochs: int) -> None:
    """Train DLLP on two moons with bags of one, where it is supervised learning, to bags of five hundred."""
    data = moons(SEED)
    singles, hidden = make_bags(data.x, data.y, 1, 2, stream(SEED, "bags", 1))
    logits = new_network(2)(singles.x)
    bag_loss = proportion_loss(logits, singles.sizes, singles.proportions)
    supervised_loss = cross_entropy(logits, nn.functional.one_hot(hidden, 2).float()).mean()
    print(f"bags of one: bag loss {bag_loss:.6f}, cross-entropy with the true labels {supervised_loss:.6f}")

    sizes = (1, 10, 50, 500)
    accuracies = []
    for size in sizes:
        bags, _ = make_bags(data.x, data.y, size, 2, stream(SEED, "bags", size))
        network = new_network(2)
        optimizer = make_optimizer(network, "adam", 2e-3)
        for _ in first_stage(
            DLLP(network), bags, [optimizer], epochs=epochs, schedule=one_cycle, seed=SEED, batch_size=500
        ):
            pass
        accuracies.append(100 * accuracy(predict_log_proba(network, data.test_x), data.test_y))
        print(f"bags of {size}: test accuracy {accuracies[-1]:.2f} %")
    panel.plot(sizes, accuracies, "o-", color=COLORS[2])
    panel.set_xscale("log")
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.minorticks_off()
    panel.set_xlabel("bag size")
    panel.set_ylabel("test accuracy, %")
    panel.set_title("Bags of one are supervised learning", fontsize=10)


def cluster_one_bag(panel: Axes, label: Labeler, title: str, epochs: int) -> None:
    """Self-labeling from a random network: the whole data set is one bag with uniform proportions."""
    data = blobs(SEED, n=1000)
    bags = build_bags(data.x, bags=["everything"] * len(data.x), proportions={"everything": [0.25] * 4}).bags
    network = new_network(4)
    optimizer = make_optimizer(network, "adam", 1e-3)
    for _ in second_stage(
        predict_log_proba(network, bags.x), network, bags, [optimizer], epochs=epochs, schedule=constant,
        seed=SEED, label=label, memory=1, batch_size=len(data.x),
    ):  # fmt: skip
        pass
    clusters = predict_log_proba(network, bags.x).argmax(1)
    print(f"one bag, {title}: clusters of {torch.bincount(clusters, minlength=4).tolist()}")
    for c in range(4):
        here = bags.x[clusters == c]
        panel.scatter(here[:, 0], here[:, 1], s=7, c=COLORS[c], marker=MARKERS[c], linewidths=0)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.set_title(f"One bag of everything, {title}", fontsize=10)


def compare_soft_and_hard_labels(panel: Axes) -> None:
    """The mean distance between soft and hard labels, over twenty random bags of sixteen."""
    generator = stream(SEED, "scores")
    log_probs = torch.randn(320, 5, generator=generator, dtype=torch.float64).mul(2).log_softmax(1)
    sizes = torch.full((20,), 16)
    counts = torch.stack(
        [torch.bincount(torch.randint(5, (16,), generator=generator), minlength=5) for _ in sizes]
    )
    hard = hard_labels(log_probs, sizes, counts / 16)
    regs = [10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01]
    distances = []
    for reg in regs:
        soft = soft_labels(log_probs, sizes, counts / 16, reg)
        distances.append(float((soft - hard).abs().sum(1).mean() / 2))
        print(f"soft labels, reg {reg:g}: mean distance {distances[-1]:.4f} from the hard labels")
    panel.loglog(regs, distances, "o-", color=COLORS[2])
    panel.invert_xaxis()
    panel.set_xlabel("reg, 1/λ")
    panel.set_ylabel("mean distance from the hard labels")
    panel.set_title("Soft labels become hard", fontsize=10)


def main(folder: Path, small: bool = False) -> None:
    torch.set_num_threads(1)
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    compare_bag_sizes(panels[0, 0], 5 if small else 60)
    compare_soft_and_hard_labels(panels[0, 1])
    cluster_one_bag(panels[1, 0], hard_labels, "with transport", 20 if small else 200)
    cluster_one_bag(panels[1, 1], argmax_labels, "without transport", 20 if small else 200)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "limits.png", dpi=120)
    print(f"figure: {folder / 'limits.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out"))
