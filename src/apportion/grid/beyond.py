"""Beyond the paper: two views as a first stage, alone or with PLOT after it."""

from dataclasses import replace

from apportion.grid.images import CONV13, FAST, FAST_SECOND
from apportion.recipes import Data, First, Network, Options, Recipe, Second

# apportion run beyond-conv13/two-views/128     250 s on one H200, two views being two passes an epoch; 1.4 s
# an epoch. Larger bags begin later, so they need more epochs.
FIRST_EPOCHS = {16: 60, 32: 80, 64: 110, 128: 180, 256: 240, 512: 240, 1024: 240}
# apportion run beyond-resnet9/two-views/64     half the arithmetic of the 13 layers
SMALL_EPOCHS = {16: 100, 32: 130, 64: 180, 128: 300, 256: 400, 512: 400, 1024: 400}
DIGIT_EPOCHS = {256: 16, 512: 20, 1024: 24}
LARGE = 256  # bags of which a batch holds too few: its rows are of all bags instead
TWO_VIEWS = First(
    "two-views", epochs=110, optimizer="sgd", rate=0.1, decay=5e-4, schedule="ramp-cosine", clip=5.0
)
NETWORKS = {  # no dropout: strong views are enough of a burden
    "conv13": Network("conv13", {"dropout": 0.0}),
    "resnet9": Network("resnet9", {"dropout": 0.0, "both_ways": True}),
}
STUDENT = replace(FAST_SECOND, epochs=70, network=CONV13, augment="crop+flip")


def beyond(
    size: int,
    network: str = "conv13",
    data: str = "cifar10",
    second: Second | None = None,
    transport: bool = True,
    whole: bool = False,
) -> Recipe:
    small = network == "resnet9"
    return replace(
        FAST,
        data=Data(data, size),
        network=NETWORKS[network],
        first=replace(
            TWO_VIEWS,
            epochs=(SMALL_EPOCHS if small else FIRST_EPOCHS)[size],
            options=labels(transport),
            batches=None if whole else batches(size),
        ),
        second=second,
        # twice the steps an epoch, in which large bags learn far more (docs/log.md)
        instances_per_batch=max(512, size if whole else 0) if small else FAST.instances_per_batch,
        augment="weak+strong",
    )


def digits(size: int, data: str, transport: bool) -> Recipe:
    # apportion run beyond-mnist/two-views/128     13 minutes on one core of a CPU, 104,000 weights; 99 %
    return Recipe(
        data=Data(data, size),
        network=Network("resnet9", {"width": 8}),
        first=replace(
            TWO_VIEWS, epochs=DIGIT_EPOCHS.get(size, 12), options=labels(transport), batches=batches(size)
        ),
        instances_per_batch=256,
        augment="weak+strong" if data == "fashion_mnist" else "weak+strong-unmirrored",
    )


def batches(size: int) -> str | None:
    return "scattered" if size >= LARGE else None


def labels(transport: bool) -> Options:
    return {} if transport else {"transport": False}


# group -> (network, data set); in the -argmax groups a label is the largest class, to see what transport
# adds; in the -whole group large bags are not scattered
GROUPS = {
    "beyond-conv13": ("conv13", "cifar10"),
    "beyond-resnet9": ("resnet9", "cifar10"),
    "beyond-resnet9-argmax": ("resnet9", "cifar10"),
    "beyond-resnet9-whole": ("resnet9", "cifar10"),
    "beyond-resnet9-cifar100": ("resnet9", "cifar100"),
}
BEYOND = {
    f"{group}/two-views/{size}": beyond(
        size, network, data, transport=not group.endswith("-argmax"), whole=group.endswith("-whole")
    )
    for group, (network, data) in GROUPS.items()
    for size in FIRST_EPOCHS
    if size >= LARGE or not group.endswith("-whole")
}
BEYOND |= {f"beyond-conv13/two-views+plot/{size}": beyond(size, second=STUDENT) for size in FIRST_EPOCHS}
BEYOND |= {
    f"beyond-{data.replace('_', '-')}{end}/two-views/{size}": digits(size, data, transport=not end)
    for data in ("mnist", "fashion_mnist", "kmnist")
    for end in ("", "-argmax")
    for size in FIRST_EPOCHS
}
