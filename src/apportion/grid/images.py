"""CIFAR and the MNIST family: the paper's tables 1 to 3 and figure 4, in our setting."""

from dataclasses import replace
from typing import Any

from apportion.networks import MNIST_WIDTHS
from apportion.recipes import Data, First, Network, Recipe, Second

SIZES = (16, 32, 64, 128)
CONV13 = Network("conv13", {"dropout": 0.2})  # 0.5 in the paper: worse on held-out bags (docs/log.md)

# The default setting of the image tables: ours, not the paper's (docs/results.md says how it was found). A
# first stage that is longer for larger bags, then a new student that keeps a high rate until the last 30 %.
FIRST_EPOCHS = {16: 40, 32: 60, 64: 80, 128: 120}
SECOND_EPOCHS = {16: 70, 32: 80, 64: 100, 128: 120}
FAST = Recipe(
    data=Data("cifar10", 64),
    network=CONV13,
    first=First(epochs=100, rate=1e-3),
    batch_size=1024,
    augment="crop+flip",
)
# labels from a running mean of log-probabilities: after any one epoch at a high rate they are poor
FAST_SECOND = Second(
    epochs=80, mixup=1.0, hold=10, running=0.9, optimizer="sgd", rate=0.1, decay=5e-4, schedule="flat"
)


def fast(size: int, data: str = "cifar10", second: Second | None = None, **first: object) -> Recipe:
    """The default setting for one bag size; a first stage's fields may be changed."""
    epochs = FIRST_EPOCHS[size]
    stage = replace(FAST.first, epochs=epochs, **first)  # type: ignore[arg-type]
    return replace(FAST, data=Data(data, size), first=stage, second=second)


def fast_second(size: int) -> Second:
    return replace(FAST_SECOND, epochs=SECOND_EPOCHS[size])


# the larger the bags, the weaker the signal of their proportions: at weights of 1 to 30 the GAN's other terms
# drown it, and its generator must not learn too fast (docs/log.md)
GAN: dict[str, Any] = {"options": {"weight": 100.0}, "generator_rate": 3e-5}

# apportion run table1/dllp+plot/16 --seeds 1-3     both stages in about 100 s on one H200; expect 93 %
TABLE_1 = {
    f"table1/{method}{'+plot' if plot else ''}/{size}": fast(
        size, second=fast_second(size) if plot else None, **change
    )
    for method, change in {
        "dllp": {"method": "dllp"},
        "vat": {"method": "llp_vat"},
        "gan": {"method": "llp_gan", **GAN},
    }.items()
    for size in SIZES
    for plot in (False, True)
} | {
    # bags of one are supervised learning: their hard labels are the truth, whatever the teacher
    f"table1/supervised{'+plot' if plot else ''}/1": replace(
        FAST,
        data=Data("cifar10", 1),
        first=replace(FAST.first, epochs=30),
        second=FAST_SECOND if plot else None,
    )
    for plot in (False, True)
}

# apportion run table2 --seeds 1     CIFAR-100, the same settings
TABLE_2 = {
    name.replace("table1", "table2"): replace(recipe, data=replace(recipe.data, name="cifar100"))
    for name, recipe in TABLE_1.items()
}

# apportion run table3 --seeds 1     the ablation: second stages after table1/dllp/64, which is its baseline;
# its row CE + OT + mixup is table1/dllp+plot/64
TABLE_3 = {
    f"table3/{name}/64": fast(64, second=replace(fast_second(64), **change))  # type: ignore[arg-type]
    for name, change in {
        "ce": {"labels": "predicted", "mixup": 0.0},
        "sce": {"labels": "predicted", "loss": "sce", "mixup": 0.0},
        "ce+ot": {"mixup": 0.0},
        "sce+ot": {"loss": "sce", "mixup": 0.0},
        "sce+ot+mixup": {"loss": "sce"},  # the row that the paper lacks
    }.items()
}

# apportion run figure4 --seeds 1     soft labels, the teachers of tables 1 and 2, which have figure 3 in them
FIGURE_4 = {
    f"{group}/soft-{round(1 / reg)}/{size}": fast(
        size, data, second=replace(fast_second(size), labels="soft", reg=reg)
    )
    for group, data in (("figure4", "cifar10"), ("figure4-cifar100", "cifar100"))
    for reg in (1.0, 0.1)
    for size in SIZES
}

# apportion run mnist --seeds 1     the appendix network
MNIST = {
    f"{data.replace('_', '-')}/{method}{'+plot' if second else ''}/{size}": Recipe(
        data=Data(data, size),
        network=Network("mlp", {"widths": MNIST_WIDTHS}),
        first=First("count_likelihood" if method == "counts" else method, epochs=60, rate=1e-3),
        second=second,
        batch_size=1024,
    )
    for data in ("mnist", "fashion_mnist", "kmnist")
    for method in ("dllp", "counts")
    for size in SIZES
    for second in (None, Second(epochs=40, hold=10, rate=1e-3))
}
