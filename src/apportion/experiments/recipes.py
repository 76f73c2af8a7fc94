"""The named recipes: tables and figures of the paper, and what goes beyond it. `apportion list` prints them.

Names are group/method/bag size, such as table1/dllp+plot/64. Comments give the command, and where it was
measured the time and the accuracy to expect. docs/log.md says how settings were found.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apportion.experiments.recipe import Data, FirstStage, Network, Recipe, SecondStage
from apportion.methods import METHODS, is_linear, takes_pairs
from apportion.networks import MNIST_WIDTHS

SIZES = (16, 32, 64, 128)
LARGER_SIZES = (256, 512, 1024)  # not in the paper

Recipes = dict[str, Recipe]


# --- two moons: figure 2 of the paper

MOONS = Recipe(
    data=Data("moons", 50),
    network=Network("mlp", {"widths": (64, 64, 64)}),
    first=FirstStage(epochs=150, learning_rate=2e-3),
    batch_size=100,
)
MOONS_STUDENT = SecondStage(epochs=80, warmup_epochs=10, learning_rate=1e-3)
MOONS_GAN = FirstStage("llp_gan", epochs=150, learning_rate=5e-3, options={"noise": 8})


def two_moons(group: str, first_stages: Mapping[str, FirstStage]) -> Recipes:
    """First stages on two moons, alone and with PLOT."""
    recipes = {}
    for method, first in first_stages.items():
        recipes[f"{group}/{method}/50"] = replace(MOONS, first=first)
        recipes[f"{group}/{method}+plot/50"] = replace(MOONS, first=first, second=MOONS_STUDENT)
    return recipes


# apportion run figure2 --seeds 1-5     half a minute per seed on one core
FIGURE_2 = two_moons("figure2", {"dllp": MOONS.first, "llp_gan": MOONS_GAN})

# apportion run figure2-early --seeds 1-5     first stages stopped after 40 epochs, which make mistakes
EARLY = {"epochs": 40, "schedule": "constant", "learning_rate": 1e-3}
FIGURE_2_EARLY = two_moons(
    "figure2-early",
    {
        "dllp": replace(MOONS.first, **EARLY),  # type: ignore[arg-type]
        "llp_gan": replace(MOONS_GAN, **EARLY),  # type: ignore[arg-type]
    },
)


# --- scikit-learn's digits: every method in seconds

DIGITS = Recipe(
    data=Data("digits", 16),
    network=Network("mlp", {"widths": (128, 128, 128)}),
    first=FirstStage(epochs=100, learning_rate=2e-3),
    batch_size=128,
)
# the teacher is trained on: a new student loses what LLP-VAT gained (98.4 to 97.0 %)
DIGITS_STUDENT = SecondStage(epochs=40, warmup_epochs=1, learning_rate=5e-4, student="teacher")


def digits() -> Recipes:
    """apportion run digits --seeds 4-6     about 5 s per run on one core"""
    changes: dict[str, dict[str, Any]] = {
        "dllp": {},
        "llp_vat": {},
        # with weight 1 the two other terms drown the proportions of ten classes
        "llp_gan": {"learning_rate": 5e-3, "options": {"weight": 10.0}},
        "rot": {},
        "count_likelihood": {},
    }
    recipes = {"digits/supervised/1": replace(DIGITS, data=Data("digits", 1))}
    for method, change in changes.items():
        recipe = replace(DIGITS, first=replace(DIGITS.first, method=method, **change))
        recipes[f"digits/{method}/16"] = recipe
        recipes[f"digits/{method}+plot/16"] = replace(recipe, second=DIGITS_STUDENT)
    return recipes


# --- CIFAR: tables 1 to 3 and figure 4 of the paper, in our setting

CONV13 = Network("conv13", {"dropout": 0.2})  # 0.5 in the paper: worse on held-out bags
# By bag size. The larger the bags, the weaker the signal of their proportions: more epochs at a lower rate.
FIRST_EPOCHS = {1: 30, 16: 40, 32: 60, 64: 80, 128: 120}
FIRST_RATES = {1: 0.05, 16: 0.05, 32: 0.03, 64: 0.02, 128: 0.02}
STUDENT_EPOCHS = {1: 50, 16: 50, 32: 55, 64: 60, 128: 80}
CIFAR = Recipe(
    data=Data("cifar10", 64),
    network=CONV13,
    first=FirstStage(optimizer="muon", weight_decay=5e-4, schedule="ramp_cosine"),
    batch_size=1024,
    augment="crop+flip",
)
# labels from a moving average of predictions: after a single epoch at a high rate they are poor
CIFAR_STUDENT = SecondStage(
    warmup_epochs=10,
    ema=0.9,
    optimizer="muon",
    learning_rate=0.05,
    weight_decay=5e-4,
    schedule="ramp_cosine",
)
# With weights of 1 to 30 the other terms of LLP-GAN drown the proportions of large bags. The generator must
# not learn too fast. With a weight of 100 gradients are too long for SGD, which trains what Muon does not.
GAN: dict[str, Any] = {"options": {"weight": 100.0}, "generator_learning_rate": 3e-5, "clip": 0.2}
CIFAR_METHODS: dict[str, dict[str, Any]] = {"dllp": {}, "llp_vat": {}, "llp_gan": GAN}


def cifar_first_stage(size: int, data: str = "cifar10", **changes: Any) -> Recipe:
    """A first stage in our setting for one bag size."""
    first = replace(CIFAR.first, epochs=FIRST_EPOCHS[size], learning_rate=FIRST_RATES[size], **changes)
    return replace(CIFAR, data=Data(data, size), first=first)


def cifar_student(size: int, **changes: Any) -> SecondStage:
    return replace(CIFAR_STUDENT, epochs=STUDENT_EPOCHS[size], **changes)


def cifar_table(table: str, data: str) -> Recipes:
    """apportion run table1 --seeds 11     table 1 or 2 under the rule of the paper's table 1: no mixup

    table1-mixup and table2-mixup have the same students with mixup, after the same first stages.
    """
    stages = {
        (method, size): cifar_first_stage(size, data, method=method, **changes)
        for method, changes in CIFAR_METHODS.items()
        for size in SIZES
    }
    # bags of one are supervised learning: their hard labels are the true ones, whatever the teacher
    stages["supervised", 1] = cifar_first_stage(1, data)
    recipes = {f"{table}/{method}/{size}": recipe for (method, size), recipe in stages.items()}
    for group, mixup in ((table, 0.0), (f"{table}-mixup", 1.0)):
        for (method, size), recipe in stages.items():
            second = cifar_student(size, mixup=mixup)
            recipes[f"{group}/{method}+plot/{size}"] = replace(recipe, second=second)
    return recipes


TABLE_1 = cifar_table("table1", "cifar10")
TABLE_2 = cifar_table("table2", "cifar100")


def table_3() -> Recipes:
    """apportion run table3     the ablation: second stages after table1/dllp/64, which is its baseline

    Its row CE + OT is table1/dllp+plot/64, and CE + OT + mixup table1-mixup/dllp+plot/64.
    """
    changes: dict[str, dict[str, Any]] = {
        "ce": {"labels": "predicted"},
        "sce": {"labels": "predicted", "loss": "sce"},
        "sce+ot": {"loss": "sce"},
        "sce+ot+mixup": {"loss": "sce", "mixup": 1.0},  # not in the paper
    }
    recipe = cifar_first_stage(64)
    return {
        f"table3/{row}/64": replace(recipe, second=cifar_student(64, **change))
        for row, change in changes.items()
    }


def figure_4(group: str, data: str) -> Recipes:
    """apportion run figure4     soft labels, next to the hard ones of tables 1 and 2"""
    recipes = {}
    for reg in (1.0, 0.1):
        for size in SIZES:
            student = cifar_student(size, labels="soft", reg=reg)
            recipe = replace(cifar_first_stage(size, data), second=student)
            recipes[f"{group}/soft-{round(1 / reg)}/{size}"] = recipe
    return recipes


def studies() -> Recipes:
    """apportion run studies     parts of the paper that are in none of its tables, on CIFAR-10

    The δ of algorithm 2 is the Frobenius norm of the change of predictions, each row divided by its bag size.
    Its first value compares confident predictions with uniform ones, so it is at most √(0.9 · 50,000) / 64 =
    3.3. A fifth of that is what remains once 2 % of the predictions change to another class in an epoch.
    """
    algorithm_2 = cifar_student(64, labels="soft", memory=1, ema=0.0, stop=0.66)
    # bags of 2 to 800 images, in which eqs. (3) and (22) differ: as many epochs as at 128
    unequal = replace(cifar_first_stage(128), data=Data("cifar10", 256, "kmeans"))
    return {
        "studies/rot/64": cifar_first_stage(64, method="rot"),
        "studies/dllp+plot-algorithm2/64": replace(cifar_first_stage(64), second=algorithm_2),
        "studies/dllp/256": unequal,
        "studies/dllp+plot/256": replace(unequal, second=cifar_student(128)),
        "studies/dllp+plot-eq3/256": replace(unequal, second=cifar_student(128, weighting="bag")),
    }


# --- table 1 in the paper's setting


def paper_setting() -> Recipes:
    """apportion run table1-paper     the setting of the paper as far as it is given

    Adam at 1e-4 halved every 100 epochs, β₁ = 0.5, SCE, no mixup, dropout 0.5. The epochs and the size of a
    batch are not given (docs/paper.md, P1), nor is whether the student is a new network (P5), nor the weights
    of SCE (P9).
    """
    first = FirstStage(epochs=200, learning_rate=1e-4, momentum=0.5, schedule="halving")
    continued = SecondStage(
        epochs=100,
        loss="sce",
        warmup_epochs=1,
        learning_rate=1e-4,
        momentum=0.5,
        schedule="halving",
        student="teacher",
    )
    # a new network starts from nothing: as many epochs as the first stage, and the teacher's labels for ten
    new = replace(continued, epochs=first.epochs, warmup_epochs=10, student="new")
    recipes = {}
    for size in SIZES:
        network = Network("conv13", {"dropout": 0.5})
        recipe = replace(CIFAR, data=Data("cifar10", size), network=network, first=first)
        students = {"plot": continued, "plot-new": new}
        if size >= 64:
            students |= {f"{name}-eq9": replace(each, loss="sce-eq9") for name, each in students.items()}
        recipes[f"table1-paper/dllp/{size}"] = recipe
        for name, second in students.items():
            recipes[f"table1-paper/dllp+{name}/{size}"] = replace(recipe, second=second)
    return recipes


# --- the setting before Muon, until its runs under results/ are replaced

SGD_STUDENT = replace(
    CIFAR_STUDENT, mixup=1.0, optimizer="sgd", learning_rate=0.1, schedule="flat_then_linear"
)


def earlier() -> Recipes:
    """First stages with Adam, students with SGD and, except in most of table 3, mixup."""
    student_epochs = {1: 80, 16: 70, 32: 80, 64: 100, 128: 120}
    now = TABLE_1 | TABLE_2 | table_3() | {"table3/ce+ot/64": TABLE_1["table1/dllp+plot/64"]}
    now |= figure_4("figure4", "cifar10") | figure_4("figure4-cifar100", "cifar100")
    recipes = {}
    for name, recipe in now.items():
        group, method, size = name.split("/")
        if group.endswith("-mixup"):
            continue
        first = replace(
            recipe.first,
            optimizer="adam",
            learning_rate=1e-3,
            weight_decay=0.0,
            schedule="one_cycle",
            clip=None,
        )
        second = recipe.second
        if second is not None:
            second = replace(
                second,
                epochs=student_epochs[int(size)],
                mixup=second.mixup if group == "table3" else 1.0,
                optimizer=SGD_STUDENT.optimizer,
                learning_rate=SGD_STUDENT.learning_rate,
                schedule=SGD_STUDENT.schedule,
            )
        recipes[f"{group}-earlier/{method}/{size}"] = replace(recipe, first=first, second=second)
    return recipes


# --- MNIST with the network of the appendix


def mnist() -> Recipes:
    """apportion run mnist"""
    recipes = {}
    for method in ("dllp", "count_likelihood"):
        for size in SIZES:
            recipe = Recipe(
                data=Data("mnist", size),
                network=Network("mlp", {"widths": MNIST_WIDTHS}),
                first=FirstStage(method, epochs=60, learning_rate=1e-3),
                batch_size=1024,
            )
            second = SecondStage(epochs=40, warmup_epochs=10, learning_rate=1e-3)
            recipes[f"mnist/{method}/{size}"] = recipe
            recipes[f"mnist/{method}+plot/{size}"] = replace(recipe, second=second)
    return recipes


# --- beyond the paper: two views as a first stage

TWO_VIEWS = FirstStage(
    "two_views",
    epochs=110,
    optimizer="sgd",
    learning_rate=0.1,
    weight_decay=5e-4,
    schedule="ramp_cosine",
    clip=5.0,
)
TWO_VIEWS_MUON = replace(TWO_VIEWS, optimizer="muon", learning_rate=0.05)
# no dropout: strong views are enough regularization
PLAIN_CONV13 = Network("conv13", {"dropout": 0.0})
FLIP_CONV13 = Network("conv13", {"dropout": 0.0, "test_time_flip": True})
FLIP_RESNET9 = Network("resnet9", {"dropout": 0.0, "test_time_flip": True})
ROWS_FROM = 256  # bags of this size: a batch holds too few of them, so it takes rows of all bags


def two_views(
    group: str,
    network: Network,
    epochs: Mapping[int, int],  # by bag size
    *,
    data: str = "cifar10",
    batch_size: int = 512,  # half of CIFAR's: twice the steps per epoch, in which bags teach far more
    options: Mapping[str, Any] | None = None,
    rows_from: int | None = ROWS_FROM,
    first: FirstStage = TWO_VIEWS,
    learning_rates: Mapping[int, float] | None = None,  # by bag size, if not the usual one
) -> Recipes:
    recipes = {}
    for size, n_epochs in epochs.items():
        by_row = rows_from is not None and size >= rows_from
        stage = replace(
            first,
            epochs=n_epochs,
            options=dict(options or {}),
            batches="row" if by_row else "bag",
            learning_rate=(learning_rates or {}).get(size, first.learning_rate),
        )
        recipes[f"{group}/two_views/{size}"] = replace(
            CIFAR,
            data=Data(data, size),
            network=network,
            first=stage,
            batch_size=batch_size if rows_from is not None else max(batch_size, size),
            augment="weak+strong",
        )
    return recipes


def with_student(recipes: Recipes, second: SecondStage) -> Recipes:
    """The same recipes with a second stage."""
    return {
        name.replace("two_views", "two_views+plot"): replace(recipe, second=second)
        for name, recipe in recipes.items()
    }


def beyond_cifar() -> Recipes:
    """apportion run beyond-resnet9-muon/two_views/32     four minutes on one H200; expect 96.3 %

    Larger bags take off later, so they need more epochs. Every epoch passes each image in two views. The
    arithmetic of ResNet-9 is half that of the 13 layers (beyond-conv13/two_views/64: 200 s on one H200).
    """
    conv13_epochs = {16: 60, 32: 75, 64: 100, 128: 170, 256: 220, 512: 220, 1024: 220}
    resnet9_epochs = {16: 100, 32: 130, 64: 180, 128: 300, 256: 350, 512: 350, 1024: 350}
    muon_epochs = {16: 100, 32: 200, 64: 220, 128: 280, 256: 450, 512: 400, 1024: 400}
    conv13 = two_views("beyond-conv13", FLIP_CONV13, conv13_epochs)
    conv13_muon = two_views(
        "beyond-conv13-muon",
        FLIP_CONV13,
        {64: 90, 128: 160},  # for 200 and 300 s including compilation
        first=TWO_VIEWS_MUON,
        learning_rates={64: 0.04, 128: 0.03},
        rows_from=128,  # with rows of all bags no step waits for transport
    )
    conv13_1024 = two_views(
        "beyond-conv13-1024", PLAIN_CONV13, {16: 60, 32: 80, 64: 110, 128: 180}, batch_size=1024
    )
    resnet9 = two_views("beyond-resnet9", FLIP_RESNET9, resnet9_epochs)
    resnet9_muon = two_views(
        "beyond-resnet9-muon",
        FLIP_RESNET9,
        muon_epochs,
        first=TWO_VIEWS_MUON,
        learning_rates={32: 0.025, 64: 0.025, 256: 0.02},
        rows_from=128,
    )
    argmax = two_views("beyond-resnet9-argmax", FLIP_RESNET9, resnet9_epochs, options={"transport": False})
    whole_bags = two_views(
        "beyond-resnet9-whole", FLIP_RESNET9, {256: 400, 512: 400, 1024: 400}, rows_from=None
    )
    cifar100 = two_views("beyond-resnet9-cifar100", FLIP_RESNET9, resnet9_epochs, data="cifar100")
    # the k-means bags of LLP-VAT's paper: 195 clusters
    clusters = {
        name: replace(recipe, data=replace(recipe.data, bagging="kmeans"))
        for data in ("cifar10", "cifar100")
        for name, recipe in two_views(
            f"beyond-kmeans-{data}", FLIP_RESNET9, {256: 200}, data=data, first=TWO_VIEWS_MUON,
            learning_rates={256: 0.02},
        ).items()
    }  # fmt: skip
    student = replace(SGD_STUDENT, epochs=70, network=CONV13, augment="crop+flip")
    recipes = (
        conv13
        | conv13_muon
        | conv13_1024
        | resnet9
        | resnet9_muon
        | argmax
        | whole_bags
        | cifar100
        | clusters
    )
    return recipes | with_student(conv13 | conv13_muon | conv13_1024, student)


def beyond_mnist() -> Recipes:
    """apportion run beyond-mnist/two_views/128     13 minutes on one core, 104,000 weights; expect 99 %"""
    epochs = {16: 12, 32: 12, 64: 12, 128: 12, 256: 16, 512: 20, 1024: 24}
    network = Network("resnet9", {"width": 8})
    exact = two_views("beyond-mnist", network, epochs, data="mnist", batch_size=256)
    argmax = two_views(
        "beyond-mnist-argmax", network, epochs, data="mnist", batch_size=256, options={"transport": False}
    )
    # labels of whole bags know more than the network that they are made from
    student = replace(SGD_STUDENT, epochs=16, warmup_epochs=6, augment="crop")
    recipes = exact | argmax | with_student(exact, student)
    # the mirror image of a digit is not a digit
    return {name: replace(recipe, augment="weak+strong-unmirrored") for name, recipe in recipes.items()}


# --- every method in a second or two, for tests


def smoke() -> Recipes:
    recipes = {}
    for method in METHODS:
        first = replace(MOONS.first, method=method, epochs=3)
        recipes[f"smoke/{method}/50"] = replace(
            MOONS,
            network=Network("mlp", {"widths": ()}) if is_linear(method) else MOONS.network,
            first=first,
            augment="weak+strong" if takes_pairs(method) else "none",
        )
    student = SecondStage(epochs=3, warmup_epochs=1)
    students = {
        "hard": student,
        "sce-mixup": replace(student, loss="sce", mixup=1.0),
        "soft": replace(student, labels="soft"),
        "predicted": replace(student, labels="predicted"),
    }
    for name, second in students.items():
        first = replace(MOONS.first, epochs=3)
        recipes[f"smoke/dllp+plot-{name}/50"] = replace(MOONS, first=first, second=second)
    return recipes


RECIPES: Recipes = {
    **FIGURE_2,
    **FIGURE_2_EARLY,
    **digits(),
    **TABLE_1,
    **TABLE_2,
    **table_3(),
    **figure_4("figure4", "cifar10"),
    **figure_4("figure4-cifar100", "cifar100"),
    **studies(),
    **paper_setting(),
    **earlier(),
    **mnist(),
    **beyond_cifar(),
    **beyond_mnist(),
    **smoke(),
}
