"""Beyond the paper: two views as a first stage, alone or with PLOT after it."""

from dataclasses import replace

from apportion.grid.images import CONV13, FAST, FAST_SECOND, SIZES
from apportion.recipes import Data, First, Network, Recipe

# apportion run beyond-conv13/two-views/128     250 s on one H200, two views being two passes an epoch; 1.4 s
# an epoch. Larger bags begin later, so they need more epochs.
FIRST_EPOCHS = {16: 60, 32: 80, 64: 110, 128: 180, 256: 240, 512: 240, 1024: 240}
TWO_VIEWS = First(
    "two-views", epochs=110, optimizer="sgd", rate=0.1, decay=5e-4, schedule="ramp-cosine", clip=5.0
)
STUDENT = replace(FAST_SECOND, epochs=70, network=CONV13, augment="crop+flip")
# apportion run beyond-resnet9/two-views/64     half the arithmetic of the 13 layers, so twice the epochs
RESNET9_EPOCHS = {size: 2 * epochs for size, epochs in FIRST_EPOCHS.items()}


def beyond(size: int, plot: bool = False, network: str = "conv13", data: str = "cifar10") -> Recipe:
    epochs = (RESNET9_EPOCHS if network == "resnet9" else FIRST_EPOCHS)[size]
    return replace(
        FAST,
        data=Data(data, size),
        network=Network(network, {"dropout": 0.0}),  # strong views are enough of a burden
        first=replace(TWO_VIEWS, epochs=epochs),
        second=STUDENT if plot else None,
        augment="weak+strong",
    )


BEYOND = (
    {
        f"beyond-conv13/two-views{'+plot' if plot else ''}/{size}": beyond(size, plot)
        for size in FIRST_EPOCHS
        for plot in (False, True)
    }
    | {f"beyond-resnet9/two-views/{size}": beyond(size, network="resnet9") for size in RESNET9_EPOCHS}
    | {
        # apportion run beyond-mnist/two-views/128     13 minutes on one core of a CPU, 104,000 weights; 99 %
        f"beyond-{data.replace('_', '-')}/two-views/{size}": Recipe(
            data=Data(data, size),
            network=Network("resnet9", {"width": 8}),
            first=replace(TWO_VIEWS, epochs=12),
            instances_per_batch=256,
            augment="weak+strong" if data == "fashion_mnist" else "weak+strong-unmirrored",
        )
        for data in ("mnist", "fashion_mnist", "kmnist")
        for size in SIZES
    }
)
