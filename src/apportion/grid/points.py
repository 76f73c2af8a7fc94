"""Two moons and digits: the paper's figure 2, and everything that runs on one core in seconds."""

from dataclasses import replace

from apportion.recipes import Data, First, Network, Recipe, Second

MOONS = Recipe(
    data=Data("moons", 50),
    network=Network("mlp", {"widths": (64, 64, 64)}),
    first=First(epochs=150, rate=2e-3),
    batch_size=100,
)
MOONS_SECOND = Second(epochs=80, hold=10, rate=1e-3)
GAN_POINTS = First("llp_gan", epochs=150, rate=5e-3, options={"noise": 8})  # 100 values are for images

# apportion run figure2 --seeds 1-5     the paper's two-moons study: about half a minute a seed on one core
FIGURE_2 = {
    f"figure2/{name}{'+plot' if second else ''}/50": replace(MOONS, first=first, second=second)
    for name, first in {"dllp": MOONS.first, "gan": GAN_POINTS}.items()
    for second in (None, MOONS_SECOND)
}

# apportion run figure2-early --seeds 1-5     the first stage stopped after 40 epochs, so that it errs
FIGURE_2_EARLY = {
    f"figure2-early/{name}{'+plot' if second else ''}/50": replace(MOONS, first=first, second=second)
    for name, first in {
        "dllp": replace(MOONS.first, epochs=40, schedule="constant", rate=1e-3),
        "gan": replace(GAN_POINTS, epochs=40, schedule="constant", rate=1e-3),
    }.items()
    for second in (None, MOONS_SECOND)
}

DIGITS = Recipe(
    data=Data("digits", 16),
    network=Network("mlp", {"widths": (128, 128, 128)}),
    first=First(epochs=100, rate=2e-3),
    batch_size=128,
)

# apportion run digits --seeds 4-6     every first stage and PLOT after it: about 5 s a run on one core
DIGITS_GRID = {
    f"digits/{method}{'+plot' if second else ''}/16": replace(DIGITS, first=first, second=second)
    for method, first in {
        "dllp": DIGITS.first,
        "vat": replace(DIGITS.first, method="llp_vat"),
        # at weight 1 the two other terms drown the proportions of ten classes (docs/log.md)
        "gan": replace(DIGITS.first, method="llp_gan", rate=5e-3, options={"weight": 10.0}),
        "rot": replace(DIGITS.first, method="rot"),
        "counts": replace(DIGITS.first, method="count_likelihood"),
    }.items()
    # the teacher continued: a new student, being no VAT, loses what VAT gained (98.4 to 97.0 %)
    for second in (None, Second(epochs=40, hold=1, rate=5e-4, student="teacher"))
} | {"digits/supervised/1": replace(DIGITS, data=Data("digits", 1))}

# apportion run smoke     every method in a second or two: what the pinned tests run
SMOKE = {
    f"smoke/{name}/50": replace(MOONS, first=replace(MOONS.first, method=method, epochs=3), augment=views)
    for views, methods in {
        "none": {
            "dllp": "dllp",
            "vat": "llp_vat",
            "gan": "llp_gan",
            "rot": "rot",
            "counts": "count_likelihood",
        },
        "weak+strong": {"two-views": "two_views"},
    }.items()
    for name, method in methods.items()
} | {
    f"smoke/dllp+plot-{name}/50": replace(MOONS, first=replace(MOONS.first, epochs=3), second=second)
    for name, second in {
        "hard": Second(epochs=3, hold=1),
        "sce-mixup": Second(epochs=3, hold=1, loss="sce", mixup=1.0),
        "soft": Second(epochs=3, hold=1, labels="soft"),
        "predicted": Second(epochs=3, hold=1, labels="predicted"),
    }.items()
}
