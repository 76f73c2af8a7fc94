"""Beyond the paper: two views as a first stage, then PLOT with strong views."""

from dataclasses import replace

from apportion.grid.images import FAST, FAST_SECOND
from apportion.recipes import Data, First, Network, Recipe

# apportion run beyond-conv13/two-views+plot/128     both stages on one H200, docs/methods/two-views.md
FIRST_EPOCHS = {16: 40, 32: 50, 64: 80, 128: 160, 256: 200, 512: 200, 1024: 200}
SECOND_EPOCHS = {16: 80, 32: 80, 64: 60, 128: 60, 256: 60, 512: 60, 1024: 60}
NETWORKS = {"conv13": Network("conv13", {"dropout": 0.0}), "resnet18": Network("resnet18")}
TWO_VIEWS = First(
    "two-views", epochs=80, optimizer="sgd", rate=0.1, decay=5e-4, schedule="ramp-cosine", clip=5.0
)


def beyond(network: str, size: int, plot: bool, data: str = "cifar10") -> Recipe:
    student = replace(FAST_SECOND, epochs=SECOND_EPOCHS[size], hold=5, augment="strong")
    return replace(
        FAST,
        data=Data(data, size),
        network=NETWORKS[network],
        first=replace(TWO_VIEWS, epochs=FIRST_EPOCHS[size]),
        second=student if plot else None,
        augment="weak+strong",
    )


BEYOND = {
    f"beyond-{network}/two-views{'+plot' if plot else ''}/{size}": beyond(network, size, plot)
    for network in NETWORKS
    for size in FIRST_EPOCHS
    for plot in (False, True)
}
