"""Beyond the paper: two views as a first stage, alone or with PLOT after it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apportion.grid.images import CONV13, FAST, FAST_SECOND, SIZES
from apportion.recipes import Data, First, Network, Options, Recipe

LARGE = 256  # bags of which a batch holds too few: its rows are of all bags instead
TWO_VIEWS = First(
    "two_views", epochs=110, optimizer="sgd", rate=0.1, decay=5e-4, schedule="ramp-cosine", clip=5.0
)
# for resnet9 and conv13, whose filters have no length that matters
MUON = replace(TWO_VIEWS, optimizer="muon", rate=0.05)
# no dropout: strong views are enough of a burden
PLAIN13 = Network("conv13", {"dropout": 0.0})
BOTH13 = Network("conv13", {"dropout": 0.0, "test_time_flip": True})
BOTH9 = Network("resnet9", {"dropout": 0.0, "test_time_flip": True})
WIDE9 = replace(BOTH9, options={**BOTH9.options, "width": 96})
STUDENT = replace(FAST_SECOND, epochs=70, network=CONV13, augment="crop+flip")
STUDENT9 = replace(STUDENT, epochs=80, network=BOTH9)

# Larger bags begin later, so they need more epochs. An epoch of two views is two passes.
# apportion run beyond-conv13/two-views/64      200 s on one H200
# apportion run beyond-resnet9/two-views/64     half the arithmetic of the 13 layers
EPOCHS13 = {16: 60, 32: 75, 64: 100, 128: 170, 256: 220, 512: 220, 1024: 220}
EPOCHS9 = {16: 100, 32: 130, 64: 180, 128: 300, 256: 350, 512: 350, 1024: 350}
# apportion run beyond-resnet9-muon/two-views/32     four minutes on one H200; expect 96.3 %
EPOCHS_MUON = {16: 100, 32: 200, 64: 220, 128: 280, 256: 450, 512: 400, 1024: 400}
EPOCHS13_MUON = {64: 90, 128: 160}  # for 200 and 300 s with compilation, by what an epoch should take
RATES_MUON = {32: 0.025, 64: 0.025, 256: 0.02}
RATES13_MUON = {64: 0.04, 128: 0.03}
DIGIT_EPOCHS = {16: 12, 32: 12, 64: 12, 128: 12, 256: 16, 512: 20, 1024: 24}


def beyond(
    size: int,
    epochs: int,
    network: Network,
    *,
    data: str = "cifar10",
    batch: int = 512,  # half of FAST's: twice the steps an epoch, in which bags learn far more (docs/log.md)
    transport: bool = True,
    whole: bool = False,
    muon: Mapping[int, float] | None = None,  # rates by bag size, where they are not as usual
) -> Recipe:
    # at 128 scattered batches learned as much in the one trial, and no step waits for transport
    batches = None if whole else in_batches(size, LARGE if muon is None else LARGE // 2)
    stage = TWO_VIEWS if muon is None else replace(MUON, rate=muon.get(size, MUON.rate))
    return replace(
        FAST,
        data=Data(data, size),
        network=network,
        first=replace(stage, epochs=epochs, options=labels(transport), batches=batches),
        batch_size=max(batch, size) if whole else batch,
        augment="weak+strong",
    )


def digits(size: int, data: str, transport: bool) -> Recipe:
    # apportion run beyond-mnist/two-views/128     13 minutes on one core of a CPU, 104,000 weights; 99 %
    options, batches = labels(transport), in_batches(size)
    return Recipe(
        data=Data(data, size),
        network=Network("resnet9", {"width": 8}),
        first=replace(TWO_VIEWS, epochs=DIGIT_EPOCHS[size], options=options, batches=batches),
        batch_size=256,
        augment="weak+strong" if data == "fashion_mnist" else "weak+strong-unmirrored",
    )


# a student of transport's labels of whole bags, which know more than the network that they are made from
DIGIT_STUDENT = replace(FAST_SECOND, epochs=16, hold=6, augment="crop")


def in_batches(size: int, large: int = LARGE) -> str | None:
    return "scattered" if size >= large else None


def labels(transport: bool) -> Options:
    return {} if transport else {"transport": False}


# group -> network, epochs by bag size, and what is not as usual
GROUPS: dict[str, tuple[Network, dict[int, int], dict[str, Any]]] = {
    "beyond-conv13": (BOTH13, EPOCHS13, {}),
    "beyond-conv13-muon": (BOTH13, EPOCHS13_MUON, {"muon": RATES13_MUON}),
    "beyond-conv13-1024": (PLAIN13, {16: 60, 32: 80, 64: 110, 128: 180}, {"batch": 1024}),  # as it was first
    "beyond-resnet9": (BOTH9, EPOCHS9, {}),
    "beyond-resnet9-argmax": (BOTH9, EPOCHS9, {"transport": False}),  # to see what transport adds
    "beyond-resnet9-whole": (BOTH9, {256: 400, 512: 400, 1024: 400}, {"whole": True}),  # and scattering
    "beyond-resnet9-cifar100": (BOTH9, EPOCHS9, {"data": "cifar100"}),
    "beyond-resnet9-muon": (BOTH9, EPOCHS_MUON, {"muon": RATES_MUON}),
    "beyond-resnet9-wide": (WIDE9, {size: EPOCHS9[size] for size in SIZES}, {}),  # 2.2 times the arithmetic
}
BEYOND = {
    f"{group}/two-views/{size}": beyond(size, length, network, **other)
    for group, (network, epochs, other) in GROUPS.items()
    for size, length in epochs.items()
}
BEYOND |= {
    name.replace("two-views", "two-views+plot"): replace(recipe, second=STUDENT)
    for name, recipe in BEYOND.items()
    if name.startswith("beyond-conv13")
}
# students of ResNet-9, and of its strong views: labels of whole bags know more than the teacher at 16 and 32
BEYOND |= {
    f"beyond-resnet9{end}/two-views+plot/{size}": replace(
        BEYOND[f"beyond-resnet9/two-views/{size}"], second=replace(STUDENT9, augment=views)
    )
    for end, views in {"": "crop+flip", "-strong": "strong"}.items()
    for size in SIZES
}
BEYOND |= {
    f"beyond-{data.replace('_', '-')}{end}/two-views/{size}": digits(size, data, transport=not end)
    for data in ("mnist", "fashion_mnist", "kmnist")
    for end in ("", "-argmax")
    for size in DIGIT_EPOCHS
}
BEYOND |= {
    f"beyond-mnist/two-views+plot/{size}": replace(digits(size, "mnist", True), second=DIGIT_STUDENT)
    for size in DIGIT_EPOCHS
}
