"""The paper's tables 1 and 2 in other settings: held-out bags, longer, by Muon, and as the paper says."""

from dataclasses import replace

from apportion.grid.images import FAST, FAST_SECOND, SIZES, TABLE_1, TABLE_2
from apportion.recipes import Data, First, Network, Recipe, Second

# apportion run table1-held-out/dllp+plot/64     a tenth of the bags held out: which epoch would they choose?
TABLE_1_HELD_OUT = {
    name.replace("table1", "table1-held-out"): replace(recipe, data=replace(recipe.data, held_out=0.1))
    for name, recipe in TABLE_1.items()
    if name.startswith("table1/dllp")
}

# apportion run table2-long --seeds 1     some first stages of table 2 end too soon (docs/log.md)
LONG_EPOCHS = {16: 80, 32: 120, 64: 160, 128: 300}
TABLE_2_LONG = {
    name.replace("table2", "table2-long"): replace(
        recipe, first=replace(recipe.first, epochs=LONG_EPOCHS[recipe.data.bag_size])
    )
    for name, recipe in TABLE_2.items()
    if recipe.data.bag_size in LONG_EPOCHS
}

# apportion run table2-muon --seeds 1     as many epochs as in tables 1 and 2, the first stage by Muon
MUON_RATES = {16: 0.05, 32: 0.03, 64: 0.02, 128: 0.02}
FAST_MUON = replace(FAST.first, optimizer="muon", rate=0.05, decay=5e-4, schedule="ramp-cosine")
MUON_SECOND = replace(FAST_SECOND, optimizer="muon", rate=0.05, schedule="ramp-cosine")
GAN_CLIP = 0.2  # a weight of 100 makes gradients too long for SGD, which learns what Muon does not turn


def by_muon(recipe: Recipe) -> Recipe:
    own, rate = recipe.first, MUON_RATES[recipe.data.bag_size]
    stage = replace(own, optimizer="muon", rate=rate, clip=GAN_CLIP if own.method == "llp_gan" else None)
    return replace(recipe, first=replace(stage, decay=FAST_MUON.decay, schedule=FAST_MUON.schedule))


TABLES_MUON = {
    name.replace("/", "-muon/", 1): by_muon(recipe)
    for name, recipe in (TABLE_1 | TABLE_2).items()
    if recipe.data.bag_size in MUON_RATES
}

# apportion run table2-muon-both --seeds 1     and the student by Muon, too
MUON_BOTH = {
    name.replace("-muon/", "-muon-both/"): replace(recipe, second=replace(MUON_SECOND, epochs=second.epochs))
    for name, recipe in TABLES_MUON.items()
    if (second := recipe.second) is not None
}

# apportion run table1-paper/dllp+plot/16     as far as the paper says: Adam 1e-4 halved every 100 epochs,
# β₁ = 0.5, SCE, no mixup, dropout 0.5. P1: its epochs and batches are not given.
PAPER_CONV13 = Network("conv13", {"dropout": 0.5})
PAPER_FIRST = First(epochs=200, rate=1e-4, momentum=0.5, schedule="halving")
PAPER_SECOND = Second(
    epochs=100, loss="sce", hold=1, rate=1e-4, momentum=0.5, schedule="halving", student="teacher"
)
TABLE_1_PAPER = {
    f"table1-paper/dllp{'+plot' if plot else ''}/{size}": replace(
        FAST,
        data=Data("cifar10", size),
        network=PAPER_CONV13,
        first=PAPER_FIRST,
        second=PAPER_SECOND if plot else None,
    )
    for size in SIZES
    for plot in (False, True)
}
